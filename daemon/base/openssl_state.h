// OpenSSL's state stays until the process is gone. gRPC's threads end when they like, some of them
// after main, and use it until then; by default exit() takes it away under them, and what they hold
// of it is lost.
//
// Thread rule: call it first thing in main; behind any other use of OpenSSL it has no effect.
#pragma once

#include <openssl/crypto.h>

namespace cgx::daemon {

inline void keep_openssl_state() {
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
}

}  // namespace cgx::daemon
