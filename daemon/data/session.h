// One rank's connection as the data agent sees it: the submit ring in, the completion ring out.
//
// Thread rule: the data agent's. Made by the ipc agent, then moved over.
// Invariants: a submit record is copied before it is looked at; nothing read from shared memory
// sizes or bounds anything; no call blocks, whatever the client does to descriptors it shares with
// us. Completions that find the ring full wait in `overflow_` (bounded), so the engine never waits.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "daemon/base/shared_region.h"
#include "daemon/base/unique_function.h"
#include "proto/wire/ring.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/unique_fd.h"
#include "scheduler/engine/engine.h"

namespace cgx::daemon {

// What both processes hold ends of.
struct SessionChannel {
  SharedRegion memory;
  UniqueFd doorbell;  // eventfd: the client writes it when daemon_sleeping is set
  UniqueFd notifier;  // readable after completions when client_waits bit 1 is set
};

// The client's ends, to be sent with Welcome.
struct ClientEnds {
  UniqueFd memory, doorbell, notifier;
};

struct ChannelEnds {
  SessionChannel ours;
  ClientEnds theirs;
};
Result<ChannelEnds> make_session_channel();

class Session final : public scheduler::SessionPort {
 public:
  using Reply = UniqueFunction<void(uint32_t request, const wire::Reply&)>;

  static constexpr int kRecordsPerRound = 256;
  static constexpr size_t kOverflowMax = 128 * 1024;  // records: 8 MiB

  Session(SessionChannel channel, Reply reply);

  // Hands at most kRecordsPerRound records to `submit`; adds to `*work`. An error ends the session:
  // the ring or a record broke the contract.
  template <typename Submit>
  Status poll(Submit submit, int* work);

  void complete(cgx_completion_record record, std::string_view text) override;
  void reply(uint32_t request, const wire::Reply& reply) override;

  // Makes the completions of this round visible and wakes the client if it waits. True: there were
  // some. An error ends the session: the client does not take its completions.
  Status publish(int* work);
  bool overflowing() const { return !overflow_.empty(); }

  // The sleeping protocol: raise on every session, one fence, then look at rings_empty().
  void raise_sleeping() { set_sleeping(1); }
  void lower_sleeping() { set_sleeping(0); }
  bool ring_empty() const { return submits_.empty(); }

  // Tells the client that this daemon is not stopped.
  void beat();
  // Tells it how long a communicator waits whose program gives no time-out.
  void tell_communicator_ms(uint64_t communicator_ms);

  int doorbell_fd() const { return channel_.doorbell.get(); }
  // After the client has gone: replies and completions go nowhere.
  void mute() { muted_ = true; }
  // For the ipc agent, which unmaps it.
  SessionChannel take_channel() { return std::move(channel_); }

 private:
  void set_sleeping(uint32_t value);
  uint32_t store_text(std::string_view text);
  void refill();
  void wake_client();

  SessionChannel channel_;
  wire::SessionMemory memory_;
  wire::SubmitConsumer submits_;
  wire::CompletionProducer completions_;
  std::deque<cgx_completion_record> overflow_;
  Reply reply_;
  uint64_t published_ = 0;
  uint32_t texts_ = 0, beats_ = 0;
  std::string last_text_;  // in the slot of number texts_
  bool muted_ = false;
};

template <typename Submit>
Status Session::poll(Submit submit, int* work) {
  using Pop = wire::SubmitConsumer::Pop;
  Status status;
  int count = 0;
  cgx_submit_record record;
  Pop pop = Pop::kEmpty;
  while (count < kRecordsPerRound && status.ok() &&
         (pop = submits_.try_pop(record)) == Pop::kRecord) {
    status = submit(record);
    ++count;
  }
  if (count > 0) submits_.release();
  *work += count;
  if (pop == Pop::kViolation) return protocol_error("the submit ring's tail is out of range");
  return status;
}

}  // namespace cgx::daemon
