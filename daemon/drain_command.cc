#include "daemon/drain_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace cgx::daemon {

Status drain_running(const std::string& control_socket, const std::string& limit_s) {
  std::error_code ignored;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string beside = (own.parent_path() / "cgxctl").string();
  std::string program = ::access(beside.c_str(), X_OK) == 0 ? beside : "cgxctl";
  std::vector<std::string> words{program, "--address", control_socket, "drain"};
  if (!limit_s.empty()) words.insert(words.end(), {"--limit", limit_s});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(program.c_str(), arguments.data());
  return {StatusCode::kUNAVAILABLE,
          "--drain is done by cgxctl, which is neither beside cgxd nor in PATH: " +
              std::string(std::strerror(errno))};
}

}  // namespace cgx::daemon
