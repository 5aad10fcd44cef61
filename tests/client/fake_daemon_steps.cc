// FakeDaemon, what it does with records: sums tensors in rank order, completes and fails steps and
// calls.
#include <cstring>

#include "tests/client/fake_daemon_state.h"

namespace cgx::testing {

void FakeDaemon::take(Session& session, const cgx_submit_record& record) {
  Member* member = nullptr;
  Comm* comm = comm_of(session, record.comm, &member);
  if (!comm) return;
  switch (record.kind) {
    case CGX_SUBMIT_TENSOR:
    case CGX_SUBMIT_ABSENT: {
      if (record.attempt != comm->attempt) return;
      Member::Step& step = member->steps[record.step];
      step.cookie = record.cookie;
      Member::Said said{record.kind == CGX_SUBMIT_TENSOR, record};
      if (!step.said.emplace(record.tensor, said).second) {
        fail_step(*comm, record.step, StatusCode::kSTEP_ABANDONED,
                  "rank " + std::to_string(member - comm->members.data()) + " abandoned step " +
                      std::to_string(record.step));
        if (step.failed.insert(record.tensor).second) refuse(*member, record, comm->failure);
      }
      return;
    }
    case CGX_SUBMIT_STEP_END:
      member->steps[record.step].ended = true;
      member->steps[record.step].cookie = record.cookie;
      return;
    case CGX_SUBMIT_CALL:
      member->calls[record.step] = record;
      return;
    // There are no residuals here. A fate that is said while a failure is settled gets lost.
    case CGX_SUBMIT_STEP_DONE:
      if (comm->has_failed || record.attempt != comm->attempt) return;
      if ((record.flags & CGX_STEP_DROPPED) == 0) return;
      dropped_count_ += member->dropped.insert(record.step).second;
      return;
  }
}

// As cgxd does: every record that is not carried out has its own answer.
void FakeDaemon::refuse(Member& member, const cgx_submit_record& record, const Status& why) {
  complete(member,
           {.kind = CGX_COMPLETE_TENSOR,
            .step = record.step,
            .tensor = record.tensor,
            .cookie = record.cookie},
           why.code(), why.message());
  if (member.session && member.session->greeted) member.session->wake();
}

void FakeDaemon::complete(Member& member, cgx_completion_record record, StatusCode code,
                          const std::string& text) {
  if (!member.session || !member.session->greeted) return;
  Session& session = *member.session;
  record.comm = member.handle;
  record.epoch = 1;
  record.policy_version = 7;
  if (code != StatusCode::kOK) {
    record.outcome = CGX_OUTCOME_ERROR;
    record.status = static_cast<uint16_t>(code);
    record.text_number = ++session.texts;
    record.text_slot = session.texts % CGX_TEXT_SLOTS;
    auto& slot = wire::SessionMemory(session.memory->base).texts[record.text_slot];
    word_of(slot.number).store(0);
    std::strncpy(slot.text, text.c_str(), sizeof(slot.text) - 1);
    word_of(slot.number).store(session.texts);
  }
  session.completions->try_push(record);
}

void FakeDaemon::fail_step(Comm& comm, uint64_t step, StatusCode code, const std::string& text) {
  if (comm.has_failed) return;
  comm.has_failed = true;
  comm.failed_step = step;
  comm.failure = {code, text};
  report_failure(comm);
  for (Member& member : comm.members) {
    std::erase_if(member.calls, [&](auto& entry) {
      complete(member, {.kind = CGX_COMPLETE_CALL, .step = entry.first}, code, text);
      return true;
    });
    if (member.session && member.session->greeted) member.session->wake();
  }
}

// Answers what was submitted for the failed step, before and after the failure.
void FakeDaemon::report_failure(Comm& comm) {
  for (Member& member : comm.members) {
    bool any = false;
    for (auto& [number, step] : member.steps) {
      if (number < comm.failed_step || step.reported) continue;
      for (uint32_t tensor = 0; tensor < comm.committed; ++tensor) {
        const bool spoken_of = step.ended || step.said.contains(tensor);
        if (!spoken_of || comm.done[number].contains(tensor)) continue;
        if (!step.failed.insert(tensor).second) continue;
        complete(
            member,
            {.kind = CGX_COMPLETE_TENSOR, .step = number, .tensor = tensor, .cookie = step.cookie},
            comm.failure.code(), comm.failure.message());
        any = true;
      }
      if (!step.ended) continue;
      complete(member, {.kind = CGX_COMPLETE_STEP, .step = number, .cookie = step.cookie},
               comm.failure.code(), comm.failure.message());
      step.reported = any = true;
    }
    if (any && member.session && member.session->greeted) member.session->wake();
  }
}

void FakeDaemon::advance(Comm& comm) {
  if (held_ || !comm.joined) return;
  if (comm.has_failed) return report_failure(comm);
  for (const Member& member : comm.members) {
    if (!member.session) return;
  }
  advance_calls(comm);
  std::set<uint64_t> numbers;
  for (const Member& member : comm.members) {
    for (const auto& [number, step] : member.steps) numbers.insert(number);
  }
  for (const uint64_t number : numbers) advance_step(comm, number);
}

void FakeDaemon::advance_step(Comm& comm, uint64_t number) {
  const uint16_t failure = fail_next_.exchange(0);
  if (failure != 0) {
    return fail_step(comm, number, static_cast<StatusCode>(failure), "asked to fail by the test");
  }
  const auto size = comm.members.size();
  std::set<Session*> touched;
  for (uint32_t tensor = 0; tensor < comm.committed; ++tensor) {
    if (comm.done[number].contains(tensor)) continue;
    bool ready = true, anywhere = false;
    for (Member& member : comm.members) {
      const Member::Step& step = member.steps[number];
      const auto said = step.said.find(tensor);
      ready &= said != step.said.end() || step.ended;
      anywhere |= said != step.said.end() && said->second.present;
    }
    if (!ready) continue;
    const wire::TensorDescription& about = comm.members[0].tensors[tensor];
    std::vector<float> sum(about.elements, 0.0f);
    for (Member& member : comm.members) {
      const auto said = member.steps[number].said.find(tensor);
      if (said == member.steps[number].said.end() || !said->second.present) continue;
      const cgx_submit_record& record = said->second.record;
      const auto* in = reinterpret_cast<const float*>(
          member.session->at(record.in_arena, record.in_offset, about.elements * 4));
      for (size_t i = 0; i < sum.size() && in; ++i) sum[i] += in[i];
    }
    if (about.op == ReduceOp::kAvg) {
      for (float& value : sum) value *= 1.0f / static_cast<float>(size);
    }
    for (Member& member : comm.members) {
      const Member::Step& step = member.steps[number];
      const auto said = step.said.find(tensor);
      const bool present = said != step.said.end() && said->second.present;
      const wire::TensorDescription& own = member.tensors[tensor];
      const uint8_t arena = present ? said->second.record.out_arena : own.home_arena;
      const uint64_t offset = present ? said->second.record.out_offset : own.home_offset;
      std::byte* out = member.session->at(arena, offset, about.elements * 4);
      if (anywhere && out) std::memcpy(out, sum.data(), sum.size() * 4);
      const uint8_t outcome = !anywhere ? CGX_OUTCOME_ABSENT
                              : present ? CGX_OUTCOME_RESULT
                                        : CGX_OUTCOME_FILLED;
      complete(member,
               {.kind = CGX_COMPLETE_TENSOR,
                .outcome = outcome,
                .step = number,
                .tensor = tensor,
                .attempt = comm.attempt,
                .cookie = step.cookie},
               StatusCode::kOK, "");
      touched.insert(member.session);
    }
    comm.done[number].insert(tensor);
  }
  bool all_ended = true;
  for (Member& member : comm.members) all_ended &= member.steps[number].ended;
  for (Member& member : comm.members) {
    Member::Step& step = member.steps[number];
    if (!all_ended || step.reported || comm.done[number].size() < comm.committed) continue;
    step.reported = true;
    complete(
        member,
        {.kind = CGX_COMPLETE_STEP, .step = number, .attempt = comm.attempt, .cookie = step.cookie},
        StatusCode::kOK, "");
    touched.insert(member.session);
  }
  for (Session* session : touched) session->wake();
  bool finished = true;
  for (Member& member : comm.members) finished &= member.steps[number].reported;
  if (!finished) return;
  comm.done.erase(number);
  for (Member& member : comm.members) member.steps.erase(number);
}

void FakeDaemon::advance_calls(Comm& comm) {
  for (;;) {
    const auto& first = comm.members[0].calls;
    if (first.empty()) return;
    const uint64_t number = first.begin()->first;
    const cgx_submit_record sample = first.begin()->second;
    StatusCode code = sample.dtype == 0 ? StatusCode::kOK : StatusCode::kUNIMPLEMENTED;
    std::vector<float> sum(sample.count, 0.0f);
    for (Member& member : comm.members) {
      const auto found = member.calls.find(number);
      if (found == member.calls.end()) return;
      const cgx_submit_record& record = found->second;
      if (record.count != sample.count) code = StatusCode::kMISMATCH;
      if (code != StatusCode::kOK) continue;
      const auto* in = reinterpret_cast<const float*>(
          member.session->at(record.in_arena, record.in_offset, record.count * 4));
      for (size_t i = 0; i < sum.size() && in; ++i) sum[i] += in[i];
    }
    if (sample.op == 1) {
      for (float& value : sum) value *= 1.0f / static_cast<float>(comm.members.size());
    }
    for (Member& member : comm.members) {
      const cgx_submit_record record = member.calls[number];
      std::byte* out = member.session->at(record.out_arena, record.out_offset, record.count * 4);
      if (code == StatusCode::kOK && out) std::memcpy(out, sum.data(), sum.size() * 4);
      complete(member, {.kind = CGX_COMPLETE_CALL, .step = number}, code,
               "call of the fake daemon");
      member.calls.erase(number);
      member.session->wake();
    }
  }
}

}  // namespace cgx::testing
