// StepLedger: what one process knows of a communicator's steps: which are open, what it submitted,
// what came back. It answers misuse at once, before a record is written.
//
// Pure bookkeeping: no I/O, no clock, no lock (the session's mutex guards it). Invariants: at most
// two steps are unfinished; a completion of an earlier attempt changes nothing; every completion
// slot reserved for a step is given back, at the latest with the step's own completion.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/arena.h"
#include "client/include/cgx/cgx.h"
#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"

namespace cgx::client {

enum class Mark : uint8_t { kNone, kSubmitted, kAbsent };  // what this rank said about a tensor

struct Step {
  uint64_t number = 0;
  uint64_t cookie = 0;  // of this attempt; 0: the slot is empty
  uint32_t attempt = 0;
  double gradient_unit = 1;
  bool ended = false;      // this rank's step_end is written
  bool finished = false;   // the daemon has completed or failed it
  bool confirmed = false;  // the daemon has reported a failure of it
  uint32_t marked = 0;     // tensors submitted or absent
  uint32_t reserved = 0;   // completion slots not given back yet
  uint64_t epoch = 0;
  uint64_t policy_version = 0;
  Status failure;
  std::vector<Mark> marks;          // by tensor
  std::vector<uint8_t> states;      // by tensor: cgx_tensor_state
  std::vector<ArenaHolds> buffers;  // by tensor: what the daemon may use; empty: homes only

  // Failed before this rank's step_end: no completion of the step itself will come.
  bool stopped() const { return !failure.ok() && !ended; }
};

class StepLedger {
 public:
  explicit StepLedger(uint64_t first_step) : next_(first_step) {}

  // The table grew to `tensors` committed ones. Requires between_steps().
  void resize(uint32_t tensors) { tensors_ = tensors; }
  uint32_t tensors() const { return tensors_; }
  Status between_steps() const;
  bool unfinished() const;
  bool owed() const;    // some completion is to come: the daemon may use this rank's buffers
  bool failed() const;  // some step failed and has not been redone
  bool confirmed()
      const;  // and the daemon has said so: it may not have read an abandoning submit yet
  uint32_t reserved() const;  // completion slots of all steps

  // Of the steps that open from now on.
  void set_gradient_unit(double unit) { gradient_unit_ = unit; }

  // The step a submit, absent or step_end is about; opens it when it is the next one.
  Result<Step*> open(uint64_t number);
  // A step whose record is kept, or why there is none.
  Result<Step*> find(uint64_t number);
  // STEP_OPEN before this rank's step_end.
  Result<Step*> awaited(uint64_t number);

  // `buffers` are held until the tensor is complete.
  void mark(Step& step, uint32_t tensor, Mark mark);
  void mark(Step& step, uint32_t tensor, Mark mark, ArenaHolds buffers);
  void abandon(Step& step, Status why);
  void end(Step& step);
  // Completion slots a step_end needs: one per tensor not spoken of, one for the step.
  uint32_t slots_at_end(const Step& step) const { return tensors_ - step.marked + 1; }

  // Whether step_done may be said of a step: it is complete, and the next one has not begun, in an
  // earlier attempt neither. After a redo what was said before may be said again.
  Status may_close(const Step& step, bool dropped) const;
  void close(const Step& step, bool dropped) { closing_ = {step.number, dropped}; }
  // The attempt that records carry now.
  uint32_t attempt() const { return attempt_; }

  struct Closing {
    uint64_t number = 0;
    bool dropped = false;
  };
  // What was said of the step before the one that is submitted again: a redo must not forget it.
  std::optional<Closing> closing_before(uint64_t number) const;

  // Takes in a completion of a tensor or step; `failure` is not OK if its outcome is ERROR. Returns
  // how many completion slots became free.
  uint32_t apply(const cgx_completion_record& record, const Status& failure);
  // A redo was granted: `number` is submitted again as `attempt`. Returns freed completion slots.
  uint32_t restart(uint64_t number, uint32_t attempt);

 private:
  static constexpr uint64_t kStepsKept = 4;

  Step& slot(uint64_t number) { return steps_[number % kStepsKept]; }
  const Step* kept(uint64_t number) const;
  Status may_open() const;
  Step& begin();
  uint32_t apply_tensor(Step& step, const cgx_completion_record& record, const Status& failure);
  uint32_t apply_step(Step& step, const Status& failure);

  std::array<Step, kStepsKept> steps_;
  uint64_t next_;  // the open step, or the one that opens next
  bool open_ = false;
  uint64_t begun_end_ = 0;          // the steps below have begun, in this or an earlier attempt
  std::optional<Closing> closing_;  // said last
  uint32_t tensors_ = 0;
  uint32_t attempt_ = 0;  // of every step since the last redo
  uint64_t last_cookie_ = 0;
  double gradient_unit_ = 1;
};

}  // namespace cgx::client
