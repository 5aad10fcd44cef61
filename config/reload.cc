// What may change while the daemon runs: keys and sections whose field option says so.
#include <memory>

#include "config/config.h"
#include "config/schema.h"

namespace cgx::config {

void take_reloaded(const Message& changed, Message& running) {
  const google::protobuf::Reflection& reflection = *running.GetReflection();
  const std::unique_ptr<Message> copy(changed.New());
  copy->CopyFrom(changed);
  for (const FieldDescriptor* field : fields(*changed.GetDescriptor())) {
    if (rule(*field).reload()) {
      reflection.SwapFields(&running, copy.get(), {field});
    } else if (is_section(*field) && !field->is_repeated()) {
      take_reloaded(reflection.GetMessage(changed, field),
                    *reflection.MutableMessage(&running, field));
    }
  }
}

}  // namespace cgx::config
