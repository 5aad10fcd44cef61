#include "daemon/planner_agent.h"

#include <sys/resource.h>

namespace cgx::daemon {
namespace {

enum Tag : uint64_t { kCommitsTag, kOthersTag };

constexpr size_t kTasksMax = 4096;
constexpr int kNiceness = 10;

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
  const int planned = commits_->drain(1, run);
  return planned > 0 ? planned : others_->drain(1, run);
}

bool PlannerAgent::prepare_sleep() {
  return commits_->empty() && others_->empty();
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

void PlannerAgent::run(const std::function<void()>& work, const std::function<void()>& then) {
  const bool taken = commits_->post([this, work, then]() mutable {
    work();
    taker_.take_plan(std::move(then));
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
