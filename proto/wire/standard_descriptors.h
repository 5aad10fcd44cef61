// Descriptors 0, 1 and 2 of a program that was started with some of them closed.
// Thread rule: first thing in main.
#pragma once

#include <fcntl.h>

#include <initializer_list>

namespace cgx {

// What the program opens first would get their numbers, and what it prints would go there. Whoever
// reads or writes these gets EBADF, as if they were still closed.
inline void take_standard_descriptors() {
  for (const int fd : {0, 1, 2}) {
    const bool open = ::fcntl(fd, F_GETFD) >= 0;
    if (!open) (void)::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);  // the lowest free number
  }
}

}  // namespace cgx
