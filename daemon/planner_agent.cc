#include "daemon/planner_agent.h"

#include <sys/resource.h>

namespace cgx::daemon {
namespace {

enum Tag : uint64_t { kCommitsTag, kOthersTag };

constexpr size_t kTasksMax = 4096;
constexpr int kNiceness = 10;
// Of a search, until others have their turn: some milliseconds.
constexpr uint64_t kSliceEvaluations = 1 << 14;

}  // namespace

PlannerAgent::PlannerAgent(PlanTaker& taker)
    : taker_(taker),
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
}

int PlannerAgent::do_work(uint64_t /*now_ns*/) {
  const auto run = [](Task task) { task(); };
  for (const auto& tasks : {commits_, others_}) {
    if (const int done = tasks->drain(1, run); done > 0) return done;
  }
  if (searches_.empty()) return 0;
  search();
  return 1;
}

bool PlannerAgent::prepare_sleep() {
  return commits_->empty() && others_->empty() && searches_.empty();
}

void PlannerAgent::request(scheduler::PlanQuestion question, Answer answer) {
  Tasks& tasks = question.ranks_wait ? *commits_ : *others_;
  const bool taken = tasks.post([this, question = std::move(question), answer]() mutable {
    plan(question, std::move(answer));
  });
  if (taken) return;
  answer(Status(StatusCode::kBUSY,
                std::to_string(kTasksMax) + " plans wait to be made; ask again later"));
}

void PlannerAgent::survey(scheduler::SurveyQuestion question, SurveyAnswer answer) {
  const bool taken = others_->post([this, question = std::move(question), answer]() mutable {
    begin_search(std::move(question), std::move(answer));
  });
  if (!taken) answer(Status(StatusCode::kBUSY, "too many plans wait to be made"));
}

void PlannerAgent::begin_search(scheduler::SurveyQuestion question, SurveyAnswer answer) {
  Result<scheduler::Surveyor> surveyor = scheduler::Surveyor::create(std::move(question));
  if (!surveyor.ok()) return answer_search(std::move(answer), surveyor.status());
  searches_.push_back({*std::move(surveyor), std::move(answer)});
}

// One slice of the search whose turn it is.
void PlannerAgent::search() {
  Search next = std::move(searches_.front());
  searches_.pop_front();
  if (next.surveyor.work(kSliceEvaluations)) {
    return answer_search(std::move(next.answer), next.surveyor.survey());
  }
  searches_.push_back(std::move(next));
}

void PlannerAgent::answer_search(SurveyAnswer answer, Result<scheduler::SurveyPtr> survey) {
  taker_.take_plan([survey = std::move(survey), answer = std::move(answer)] { answer(survey); });
}

void PlannerAgent::run(const std::function<void()>& work, const std::function<void()>& then) {
  const bool taken = commits_->post([this, work, then] {
    work();
    taker_.take_plan(then);
  });
  if (!taken) PlannerPort::run(work, then);  // no room: here and now
}

void PlannerAgent::release(std::shared_ptr<const void> memory) {
  (void)others_->post([last = std::move(memory)] {});
}

void PlannerAgent::plan(const scheduler::PlanQuestion& question, Answer answer) {
  Result<scheduler::FactsPtr> facts = scheduler::make_facts(question);
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
