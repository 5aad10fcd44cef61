// Whether anybody still wants the answer to a question that takes long.
#pragma once

#include <memory>

namespace cgx::scheduler {

// Goes with the question, to any thread; expired: nobody does.
using Wanted = std::weak_ptr<const void>;

// Of whoever asks, and lives no longer than he does. Owned by one thread.
class Asking {
 public:
  Wanted wanted() const { return token_; }
  void drop() { token_ = std::make_shared<const bool>(true); }  // what was asked before this

 private:
  std::shared_ptr<const void> token_ = std::make_shared<const bool>(true);
};

}  // namespace cgx::scheduler
