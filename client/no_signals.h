// Keeps the calling thread's signals away for as long as it lives: they come when it ends. A thread
// that begins meanwhile takes none of the program's for good. Thread rule: of one thread.
#pragma once

#include <signal.h>

namespace cgx::client {

class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace cgx::client
