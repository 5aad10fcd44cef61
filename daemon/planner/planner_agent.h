// Makes plans, and frees them, away from the thread that moves gradients: both take milliseconds
// for a large model.
//
// Thread rule: an agent; request() belongs to the data agent and never waits for room. Plans may be
// dropped on any thread, after this agent has gone, too.
// Commits go before what operators ask, and both before searches. What takes long, searches and the
// memory of residuals, is done in slices, in turn with others of its kind, and whatever goes before
// it comes between two of them. A search whose asker no longer wants its answer ends before its
// next slice.
// The thread is nice: trainers need their cores. That is not enough where it makes much memory,
// most of which is the system's work: it holds a core, and threads that move gradients share the
// others. So it rests in between, unless ranks or other questions wait.
// A plan whose residuals another process makes (a GPU worker, which may hang) is made on a thread
// of its own, so that no other plan waits for that process.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/base/agent.h"
#include "daemon/base/clock.h"
#include "daemon/base/mailbox.h"
#include "daemon/data/duty_cycle.h"
#include "daemon/data/plan_taker.h"
#include "scheduler/planners/planner_port.h"

namespace cgx::daemon {

class PlannerAgent final : public Agent, public scheduler::PlannerPort {
 public:
  using Rest = void (*)(uint64_t ns);
  using UsedNs = uint64_t (*)();
  static void sleep(uint64_t ns);
  explicit PlannerAgent(PlanTaker& taker, Rest rest = sleep, UsedNs used_ns = thread_cpu_ns);
  // After so much processor time for so many bytes: most of the time, but never half as long as
  // other machines wait for them.
  static uint64_t rest_ns(uint64_t used_ns, uint64_t bytes);
  // Any thread: the daemon ends, so no more rests.
  void hurry() { hurry_ = true; }

  std::string_view name() const override { return "cgxd-planner"; }
  Status on_start() override;
  void on_stop() override;
  int do_work(uint64_t now_ns) override;
  uint64_t next_deadline_ns() const override { return kNever; }
  bool prepare_sleep() override;

  void request(scheduler::PlanQuestion question, Answer answer) override;
  void survey(scheduler::SurveyQuestion question, scheduler::Wanted wanted,
              SurveyAnswer answer) override;
  void search(scheduler::CeilingQuestion question, scheduler::Wanted wanted,
              CeilingsAnswer answer) override;
  void run(const std::function<void()>& work, const std::function<void()>& then) override;
  bool consider(const Slice& slice, const std::function<void()>& then) override;
  void release(std::shared_ptr<const void> memory) override;

 private:
  using Task = UniqueFunction<void()>;
  using Tasks = Mailbox<Task>;

  struct Making {  // a plan
    scheduler::FactsMaker maker;
    Answer answer;
  };
  // What goes before other things: in turn what is asked anew and plans that are half made.
  struct Queue {
    std::shared_ptr<Tasks> asked = std::make_shared<Tasks>(kTasksMax);
    std::deque<Making> making;
    bool makes_next = false;
    bool empty() const { return asked->empty() && making.empty(); }
  };

  // A plan that is being made beside this thread; joined before the next one or at the end.
  struct Aside {
    std::jthread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  static constexpr size_t kTasksMax = 4096, kAsideMax = 64;  // beyond, they are made here

  void take_up(scheduler::PlanQuestion question, Answer answer);
  void plan_aside(scheduler::PlanQuestion question, Answer answer);
  void join_aside(bool all);
  void plan_on(Making making);
  void tell(Result<scheduler::FactsPtr> facts, Answer answer);
  void rest_after(const scheduler::FactsMaker& maker, uint64_t used_ns);
  scheduler::FactsPtr freed_here(scheduler::FactsPtr facts) const;

  PlanTaker& taker_;
  const Rest rest_;
  const UsedNs used_ns_;  // of a processor, by this thread
  std::atomic<bool> hurry_{false};
  struct Search {
    UniqueFunction<bool()> slice;  // true: done
    Task answer;
    std::optional<scheduler::Wanted> wanted;  // none: whoever asked waits
    bool dropped() const { return wanted && wanted->expired(); }
  };
  bool work_on(Queue& queue);
  void begin_survey(scheduler::SurveyQuestion question, scheduler::Wanted wanted,
                    SurveyAnswer answer);
  void begin_ceilings(scheduler::CeilingQuestion question, scheduler::Wanted wanted,
                      CeilingsAnswer answer);
  void go_on();
  template <typename Then, typename Found>
  void take(Then answer, Found found);

  Queue commits_, others_;  // plans that are dropped post to the second
  std::deque<Search> searches_;
  std::vector<Aside> aside_;
};

}  // namespace cgx::daemon
