// Tests in which several processes meet: a test program starts itself in another role and talks
// with it.
#pragma once

#include <sys/types.h>

#include <string>
#include <type_traits>

namespace cgx::gpu {

// One end of a connection between two processes. Whatever goes wrong ends the program: tests see
// that.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  ~Channel();
  Channel(const Channel&) = delete;

  template <class T>
  void send(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    send_bytes(&value, sizeof(T));
  }
  template <class T>
  T receive() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    receive_bytes(&value, sizeof(T));
    return value;
  }
  void send_descriptor(int fd);
  int receive_descriptor();

 private:
  void send_bytes(const void* from, size_t bytes);
  void receive_bytes(void* to, size_t bytes);
  int fd_;
};

using Role = int (*)(Channel& parent);
// At the top level of a test: const bool kImporter = add_role("importer", importer);
bool add_role(const char* name, Role role);
// For main(): plays the role that the arguments name, or returns -1.
int play_role(int argc, char** argv);

// This program in another role, with CGX_STANDIN as said, or as it is for null.
class Child {
 public:
  explicit Child(const char* role, const char* standin = nullptr);
  ~Child();  // ends it
  Channel& channel() { return *channel_; }
  // Its exit status, 128 + the signal that ended it, or -1 after 20 seconds.
  int wait();
  // What it wrote to stderr, after wait().
  const std::string& words() const { return words_; }

 private:
  pid_t pid_ = -1;
  int errors_ = -1;
  Channel* channel_ = nullptr;
  std::string words_;
};

}  // namespace cgx::gpu
