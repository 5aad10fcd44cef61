#include "daemon/data/sessions_port.h"

namespace cgx::daemon {

const char* name_of(const SessionRequest& request) {
  struct Name {
    const char* operator()(const OpenSession&) const { return "a new session"; }
    const char* operator()(const AddMappedArena&) const { return "a new arena"; }
    const char* operator()(const wire::DropArena&) const { return "a dropped arena"; }
    const char* operator()(const wire::CreateCommunicator&) const { return "a new communicator"; }
    const char* operator()(const wire::Meet&) const { return "a rank that meets others"; }
    const char* operator()(const wire::RegisterTensors&) const { return "registering tensors"; }
    const char* operator()(const wire::Commit&) const { return "a commit"; }
    const char* operator()(const wire::RedoStep&) const { return "a step to be redone"; }
    const char* operator()(const wire::AskReport&) const { return "a report"; }
    const char* operator()(const wire::CloseCommunicator&) const { return "a closed communicator"; }
    const char* operator()(const CloseSession&) const { return "a closed session"; }
  };
  return std::visit(Name{}, request.body);
}

}  // namespace cgx::daemon
