#include "daemon/planner/planner_agent.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include "scheduler/communicator/plan_agreement.h"

namespace cgx::daemon {
namespace {

enum Tag : uint64_t { kCommitsTag, kOthersTag };

constexpr int kNiceness = 10;
constexpr uint64_t kRestTimes = 4;
// Of a search, until others have their turn; it looks at the clock after so many evaluations.
constexpr uint64_t kSliceNs = 5 * kMillisecond, kLookEvaluations = 1 << 9;

}  // namespace

void PlannerAgent::sleep(uint64_t ns) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

PlannerAgent::PlannerAgent(PlanTaker& taker, Rest rest, UsedNs used_ns)
    : taker_(taker), rest_(rest), used_ns_(used_ns) {}

Status PlannerAgent::on_start() {
  (void)::setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread; a wish
  CGX_RETURN_IF_ERROR(poller().add(commits_.asked->event_fd(), EPOLLIN | EPOLLET, kCommitsTag));
  return poller().add(others_.asked->event_fd(), EPOLLIN | EPOLLET, kOthersTag);
}

void PlannerAgent::on_stop() {
  commits_.asked->close();
  others_.asked->close();
  join_aside(/*all=*/true);
}

int PlannerAgent::do_work(uint64_t /*now_ns*/) {
  if (work_on(commits_) || work_on(others_)) return 1;
  if (searches_.empty()) return 0;
  go_on();
  return 1;
}

bool PlannerAgent::work_on(Queue& queue) {
  const bool make = !queue.making.empty() && (queue.makes_next || queue.asked->empty());
  queue.makes_next = !make;
  if (!make) return queue.asked->drain(1, [](Task task) { task(); }) > 0;
  Making next = std::move(queue.making.front());
  queue.making.pop_front();
  plan_on(std::move(next));
  return true;
}

bool PlannerAgent::prepare_sleep() {
  return commits_.empty() && others_.empty() && searches_.empty();
}

void PlannerAgent::request(scheduler::PlanQuestion question, Answer answer) {
  Tasks& tasks = question.ranks_wait ? *commits_.asked : *others_.asked;
  const bool taken = tasks.post([this, question = std::move(question), answer]() mutable {
    take_up(std::move(question), std::move(answer));
  });
  if (taken) return;
  answer(Status(StatusCode::kBUSY,
                std::to_string(kTasksMax) + " plans wait to be made; ask again later"));
}

void PlannerAgent::survey(scheduler::SurveyQuestion question, scheduler::Wanted wanted,
                          SurveyAnswer answer) {
  const bool taken =
      others_.asked->post([this, question = std::move(question), wanted, answer]() mutable {
        begin_survey(std::move(question), std::move(wanted), std::move(answer));
      });
  if (!taken) answer(Status(StatusCode::kBUSY, "too many plans wait to be made"));
}

void PlannerAgent::search(scheduler::CeilingQuestion question, scheduler::Wanted wanted,
                          CeilingsAnswer answer) {
  const bool taken =
      others_.asked->post([this, question = std::move(question), wanted, answer]() mutable {
        begin_ceilings(std::move(question), std::move(wanted), std::move(answer));
      });
  if (!taken) answer(Status(StatusCode::kBUSY, "too many plans wait to be made"));
}

void PlannerAgent::begin_survey(scheduler::SurveyQuestion question, scheduler::Wanted wanted,
                                SurveyAnswer answer) {
  if (wanted.expired()) return;
  Result<scheduler::Surveyor> made = scheduler::Surveyor::create(std::move(question));
  if (!made.ok()) return take(std::move(answer), Result<scheduler::SurveyPtr>(made.status()));
  auto surveyor = std::make_shared<scheduler::Surveyor>(*std::move(made));
  searches_.push_back({[surveyor] { return surveyor->work(kLookEvaluations); },
                       [this, surveyor, answer = std::move(answer)]() mutable {
                         take(std::move(answer), surveyor->survey());
                       },
                       std::move(wanted)});
}

void PlannerAgent::begin_ceilings(scheduler::CeilingQuestion question, scheduler::Wanted wanted,
                                  CeilingsAnswer answer) {
  if (wanted.expired()) return;
  auto made = scheduler::begin_ceilings(std::move(question));
  if (!made.ok()) {
    return take(std::move(answer), Result<scheduler::CeilingAnswer>(made.status()));
  }
  std::shared_ptr<scheduler::CeilingSearch> search = *std::move(made);
  searches_.push_back({[search] { return search->work(kLookEvaluations); },
                       [this, search, answer = std::move(answer)]() mutable {
                         take(std::move(answer),
                              Result<scheduler::CeilingAnswer>(search->answer()));
                       },
                       std::move(wanted)});
}

// One slice of the search whose turn it is.
void PlannerAgent::go_on() {
  Search next = std::move(searches_.front());
  searches_.pop_front();
  if (next.dropped()) return;
  const uint64_t began_ns = used_ns_();
  while (!next.slice()) {
    if (used_ns_() - began_ns >= kSliceNs) return searches_.push_back(std::move(next));
  }
  next.answer();
}

template <typename Then, typename Found>
void PlannerAgent::take(Then answer, Found found) {
  taker_.take_plan([found = std::move(found), answer = std::move(answer)] { answer(found); });
}

void PlannerAgent::run(const std::function<void()>& work, const std::function<void()>& then) {
  const bool taken = commits_.asked->post([this, work, then] {
    work();
    taker_.take_plan(then);
  });
  if (!taken) PlannerPort::run(work, then);  // no room: here and now
}

bool PlannerAgent::consider(const Slice& slice, const std::function<void()>& then) {
  return others_.asked->post([this, slice, then] {
    searches_.push_back({[slice] { return slice(kLookEvaluations); },
                         [this, then] { taker_.take_plan(then); },
                         {}});
  });
}

void PlannerAgent::release(std::shared_ptr<const void> memory) {
  (void)others_.asked->post([last = std::move(memory)] {});
}

uint64_t PlannerAgent::rest_ns(uint64_t used_ns, uint64_t bytes) {
  return std::min(kRestTimes * used_ns, scheduler::PlanAgreement::making_ns(bytes) / 2);
}

// Whatever else waits for this thread does not wait for rests, too.
void PlannerAgent::rest_after(const scheduler::FactsMaker& maker, uint64_t used_ns) {
  if (maker.ranks_wait() || maker.slice_bytes() < scheduler::FactsMaker::kSliceBytes) return;
  const bool alone = commits_.empty() && others_.asked->empty() && !hurry_;
  if (alone) rest_(rest_ns(used_ns, maker.slice_bytes()));
}

void PlannerAgent::take_up(scheduler::PlanQuestion question, Answer answer) {
  join_aside(/*all=*/false);
  const bool here = !question.residuals_elsewhere || aside_.size() >= kAsideMax;
  if (here) return plan_on({scheduler::FactsMaker(std::move(question)), std::move(answer)});
  plan_aside(std::move(question), std::move(answer));
}

// Nobody rests there: it is another process that works.
void PlannerAgent::plan_aside(scheduler::PlanQuestion question, Answer answer) {
  struct Asked {
    scheduler::PlanQuestion question;
    Answer answer;
  };
  auto asked = std::make_shared<Asked>(Asked{std::move(question), std::move(answer)});
  auto done = std::make_shared<std::atomic<bool>>(false);
  try {
    std::jthread thread([this, done, asked] {
      tell(scheduler::make_facts(asked->question), std::move(asked->answer));
      done->store(true);
    });
    aside_.push_back({std::move(thread), std::move(done)});
  } catch (const std::system_error&) {  // no thread is to be had
    plan_on({scheduler::FactsMaker(std::move(asked->question)), std::move(asked->answer)});
  }
}

void PlannerAgent::join_aside(bool all) {
  std::erase_if(aside_, [all](const Aside& each) { return all || each.done->load(); });
}

// A step of it.
void PlannerAgent::plan_on(Making making) {
  const uint64_t began_ns = used_ns_();
  if (making.maker.work()) return tell(making.maker.facts(), std::move(making.answer));
  rest_after(making.maker, used_ns_() - began_ns);
  Queue& queue = making.maker.ranks_wait() ? commits_ : others_;
  queue.making.push_back(std::move(making));
}

void PlannerAgent::tell(Result<scheduler::FactsPtr> facts, Answer answer) {
  if (facts.ok()) facts = freed_here(*std::move(facts));
  taker_.take_plan([facts = std::move(facts), answer = std::move(answer)] { answer(facts); });
}

// The same plan, freed on this thread whoever drops it last.
scheduler::FactsPtr PlannerAgent::freed_here(scheduler::FactsPtr facts) const {
  const scheduler::PlanFacts* const shown = facts.get();
  return {shown, [own = std::move(facts), tasks = others_.asked](const auto*) mutable {
            (void)tasks->post([last = std::move(own)] {});
          }};
}

}  // namespace cgx::daemon
