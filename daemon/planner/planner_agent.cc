#include "daemon/planner/planner_agent.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "daemon/data/duty_cycle.h"
#include "scheduler/communicator/plan_agreement.h"

namespace cgx::daemon {
namespace {

enum Tag : uint64_t { kCommitsTag, kOthersTag };

constexpr size_t kTasksMax = 4096;
constexpr int kNiceness = 10;
constexpr uint64_t kRestEvery = 2 << 20, kRestTimes = 4;
// Of a search, until others have their turn: some milliseconds.
constexpr uint64_t kSliceEvaluations = 1 << 14;

}  // namespace

void PlannerAgent::sleep(uint64_t ns) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

PlannerAgent::PlannerAgent(PlanTaker& taker, Rest rest)
    : taker_(taker),
      rest_(rest),
      commits_(std::make_shared<Tasks>(kTasksMax)),
      others_(std::make_shared<Tasks>(kTasksMax)) {}

Status PlannerAgent::on_start() {
  (void)::setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread; a wish
  CGX_RETURN_IF_ERROR(poller().add(commits_->event_fd(), EPOLLIN | EPOLLET, kCommitsTag));
  return poller().add(others_->event_fd(), EPOLLIN | EPOLLET, kOthersTag);
}

void PlannerAgent::on_stop() {
  commits_->close();
  others_->close();
  join_aside(/*all=*/true);
}

int PlannerAgent::do_work(uint64_t /*now_ns*/) {
  const auto run = [](Task task) { task(); };
  for (const auto& tasks : {commits_, others_}) {
    if (const int done = tasks->drain(1, run); done > 0) return done;
  }
  if (searches_.empty()) return 0;
  go_on();
  return 1;
}

bool PlannerAgent::prepare_sleep() {
  return commits_->empty() && others_->empty() && searches_.empty();
}

void PlannerAgent::request(scheduler::PlanQuestion question, Answer answer) {
  Tasks& tasks = question.ranks_wait ? *commits_ : *others_;
  if (!question.ranks_wait) {
    question.made_memory = [this](uint64_t bytes) { rest_after(bytes); };
  }
  const bool taken = tasks.post([this, question = std::move(question), answer]() mutable {
    take_up(std::move(question), std::move(answer));
  });
  if (taken) return;
  answer(Status(StatusCode::kBUSY,
                std::to_string(kTasksMax) + " plans wait to be made; ask again later"));
}

void PlannerAgent::survey(scheduler::SurveyQuestion question, SurveyAnswer answer) {
  const bool taken = others_->post([this, question = std::move(question), answer]() mutable {
    begin_survey(std::move(question), std::move(answer));
  });
  if (!taken) answer(Status(StatusCode::kBUSY, "too many plans wait to be made"));
}

void PlannerAgent::search(scheduler::CeilingQuestion question, CeilingsAnswer answer) {
  const bool taken = others_->post([this, question = std::move(question), answer]() mutable {
    begin_ceilings(std::move(question), std::move(answer));
  });
  if (!taken) answer(Status(StatusCode::kBUSY, "too many plans wait to be made"));
}

void PlannerAgent::begin_survey(scheduler::SurveyQuestion question, SurveyAnswer answer) {
  Result<scheduler::Surveyor> made = scheduler::Surveyor::create(std::move(question));
  if (!made.ok()) return take(std::move(answer), Result<scheduler::SurveyPtr>(made.status()));
  auto surveyor = std::make_shared<scheduler::Surveyor>(*std::move(made));
  searches_.push_back({[surveyor] { return surveyor->work(kSliceEvaluations); },
                       [this, surveyor, answer = std::move(answer)]() mutable {
                         take(std::move(answer), Result<scheduler::SurveyPtr>(surveyor->survey()));
                       }});
}

void PlannerAgent::begin_ceilings(scheduler::CeilingQuestion question, CeilingsAnswer answer) {
  auto made = scheduler::begin_ceilings(std::move(question));
  if (!made.ok()) {
    return take(std::move(answer), Result<scheduler::CeilingAnswer>(made.status()));
  }
  std::shared_ptr<scheduler::CeilingSearch> search = *std::move(made);
  searches_.push_back({[search] { return search->work(kSliceEvaluations); },
                       [this, search, answer = std::move(answer)]() mutable {
                         take(std::move(answer),
                              Result<scheduler::CeilingAnswer>(search->answer()));
                       }});
}

// One slice of the search whose turn it is.
void PlannerAgent::go_on() {
  Search next = std::move(searches_.front());
  searches_.pop_front();
  if (next.slice()) return next.answer();
  searches_.push_back(std::move(next));
}

template <typename Then, typename Found>
void PlannerAgent::take(Then answer, Found found) {
  taker_.take_plan([found = std::move(found), answer = std::move(answer)] { answer(found); });
}

void PlannerAgent::run(const std::function<void()>& work, const std::function<void()>& then) {
  const bool taken = commits_->post([this, work, then] {
    work();
    taker_.take_plan(then);
  });
  if (!taken) PlannerPort::run(work, then);  // no room: here and now
}

bool PlannerAgent::consider(const Slice& slice, const std::function<void()>& then) {
  return others_->post([this, slice, then] {
    searches_.push_back(
        {[slice] { return slice(kSliceEvaluations); }, [this, then] { taker_.take_plan(then); }});
  });
}

void PlannerAgent::release(std::shared_ptr<const void> memory) {
  (void)others_->post([last = std::move(memory)] {});
}

uint64_t PlannerAgent::rest_ns(uint64_t used_ns, uint64_t bytes) {
  return std::min(kRestTimes * used_ns, scheduler::PlanAgreement::making_ns(bytes) / 2);
}

// Whatever else waits for this thread does not wait for rests, too.
void PlannerAgent::rest_after(uint64_t bytes) {
  unrested_bytes_ += bytes;
  if (unrested_bytes_ < kRestEvery) return;
  const bool alone = commits_->empty() && others_->empty() && !hurry_;
  if (alone) rest_(rest_ns(thread_cpu_ns() - rested_cpu_ns_, unrested_bytes_));
  begin_work();
}

void PlannerAgent::begin_work() {
  unrested_bytes_ = 0;
  rested_cpu_ns_ = thread_cpu_ns();
}

void PlannerAgent::take_up(scheduler::PlanQuestion question, Answer answer) {
  join_aside(/*all=*/false);
  const bool here = !question.residuals_elsewhere || aside_.size() >= kAsideMax;
  if (here) return plan(question, std::move(answer));
  plan_aside(std::move(question), std::move(answer));
}

// Nobody rests there: it is another process that works.
void PlannerAgent::plan_aside(scheduler::PlanQuestion question, Answer answer) {
  question.made_memory = nullptr;
  auto done = std::make_shared<std::atomic<bool>>(false);
  std::jthread thread([this, done, question = std::move(question), answer = std::move(answer)] {
    tell(scheduler::make_facts(question), answer);
    done->store(true);
  });
  aside_.push_back({std::move(thread), std::move(done)});
}

void PlannerAgent::join_aside(bool all) {
  std::erase_if(aside_, [all](const Aside& each) { return all || each.done->load(); });
}

void PlannerAgent::plan(const scheduler::PlanQuestion& question, Answer answer) {
  begin_work();
  tell(scheduler::make_facts(question), std::move(answer));
}

void PlannerAgent::tell(Result<scheduler::FactsPtr> facts, Answer answer) {
  if (facts.ok()) facts = freed_here(*std::move(facts));
  taker_.take_plan([facts = std::move(facts), answer = std::move(answer)] { answer(facts); });
}

// The same plan, freed on this thread whoever drops it last.
scheduler::FactsPtr PlannerAgent::freed_here(scheduler::FactsPtr facts) const {
  const scheduler::PlanFacts* const shown = facts.get();
  return {shown, [own = std::move(facts), tasks = others_](const auto*) mutable {
            (void)tasks->post([last = std::move(own)] {});
          }};
}

}  // namespace cgx::daemon
