// Random programs on simulated clusters, judged strictly (tests/sim/player.h).
//
//   CGX_SIM_SEEDS=N   how many (default 500), from CGX_SIM_FIRST=S (default 1) on
//   CGX_SIM_SEED=S    only this one, with its events; CGX_SIM_ITEMS=0,3,4 only these items of it
//   CGX_SIM_COVERAGE=1  in how many programs each combination of coverage.h was met
//   CGX_SIM_GO_ON=1   count what is wrong instead of stopping at the first, crashes included
//
// A program that fails is printed, made small, and printed again.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "tests/sim/player.h"

namespace cgx::sim {
namespace {

// A crash in the middle says which program it was.
char playing[64] = "no program was being played\n";

void say_what_played(int number) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, playing, std::strlen(playing));
  std::signal(number, SIG_DFL);
  std::raise(number);
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

Verdict play(const Program& program) {
  std::snprintf(playing, sizeof playing, "crashed in program %llu\n",
                static_cast<unsigned long long>(program.seed));
  return Player(program).play();
}

// In a process of its own: a crash is a violation too.
Verdict play_apart(const Program& program) {
  int ends[2];
  if (pipe(ends) != 0) return {.violation = "no pipe"};
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    const Verdict verdict = play(program);
    const uint64_t numbers[] = {verdict.steps,   verdict.redos,    verdict.calls,
                                verdict.commits, verdict.policies, verdict.epochs,
                                verdict.ended,   verdict.lost,     verdict.trials};
    std::string all(reinterpret_cast<const char*>(numbers), sizeof numbers);
    all += verdict.covered.to_string() + verdict.violation;
    _exit(write(ends[1], all.data(), all.size()) == static_cast<ssize_t>(all.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string all;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
    all.append(part, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    return {.violation = "died of signal " + std::string(strsignal(WTERMSIG(status)))};
  uint64_t numbers[9] = {};
  constexpr size_t kFixed = sizeof numbers + Coverage::kCells;
  if (all.size() < kFixed) return {.violation = "no verdict"};
  std::memcpy(numbers, all.data(), sizeof numbers);
  Verdict verdict{.violation = all.substr(kFixed)};
  verdict.covered = Coverage::from_string(all.substr(sizeof numbers, Coverage::kCells));
  verdict.steps = numbers[0];
  verdict.redos = numbers[1];
  verdict.calls = numbers[2];
  verdict.commits = numbers[3];
  verdict.policies = numbers[4];
  verdict.epochs = numbers[5];
  verdict.ended = numbers[6] != 0;
  verdict.lost = numbers[7] != 0;
  verdict.trials = numbers[8];
  return verdict;
}

Program with_items(const Program& program, const std::set<size_t>& kept) {
  Program smaller = program;
  smaller.items.clear();
  for (size_t i = 0; i < program.items.size(); ++i) {
    if (kept.contains(i)) smaller.items.push_back(program.items[i]);
  }
  return smaller;
}

// A violation without its numbers, to count kinds.
std::string kind_of(const std::string& violation) {
  std::string kind;
  for (char c : violation.substr(0, 220)) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !kind.empty() && kind.back() == '#') continue;
    kind += digit ? '#' : c;
  }
  return kind;
}

// Leaves out what is not needed to fail alike.
std::set<size_t> needed(const Program& program, const std::string& violation) {
  const std::string kind = kind_of(violation).substr(0, 60);
  std::set<size_t> kept;
  for (size_t i = 0; i < program.items.size(); ++i) kept.insert(i);
  int plays = 0;
  for (bool fewer = true; fewer && plays < 200;) {
    fewer = false;
    for (size_t i = program.items.size(); i-- > 0;) {
      if (!kept.contains(i)) continue;
      std::set<size_t> tried = kept;
      tried.erase(i);
      ++plays;
      const std::string still = play(with_items(program, tried)).violation;
      if (still.empty() || kind_of(still).substr(0, 60) != kind) continue;
      kept = tried;
      fewer = true;
    }
  }
  return kept;
}

std::string small(const Program& program, const std::string& violation) {
  const std::set<size_t> kept = needed(program, violation);
  const Program smaller = with_items(program, kept);
  std::string text = "made small (CGX_SIM_SEED=" + std::to_string(program.seed) + " CGX_SIM_ITEMS=";
  for (size_t i : kept) text += (text.back() == '=' ? "" : ",") + std::to_string(i);
  return text + "):\n" + smaller.text() + "  " + play(smaller).violation + "\n";
}

void print_events(const Verdict& verdict) {
  for (const std::string& event : verdict.events) std::cerr << "  " << event << "\n";
}

// In how many programs each combination was met.
class Met {
 public:
  void add(const Coverage& covered) {
    for (size_t cell = 0; cell < times_.size(); ++cell) times_[cell] += covered.met(cell);
  }
  std::string missing() const {
    std::string texts;
    for (size_t cell = 0; cell < times_.size(); ++cell) {
      if (Coverage::possible(cell) && times_[cell] == 0) texts += "\n  " + Coverage::text(cell);
    }
    return texts;
  }
  void print() const {
    for (size_t cell = 0; cell < times_.size(); ++cell) {
      if (Coverage::possible(cell))
        std::cerr << times_[cell] << " x " << Coverage::text(cell) << "\n";
    }
  }

 private:
  std::vector<uint64_t> times_ = std::vector<uint64_t>(Coverage::kCells);
};

TEST(Programs, AreRightOrSayWhoDidIt) {
  for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(number, say_what_played);
  const uint64_t only = from_environment("CGX_SIM_SEED", 0);
  const uint64_t first = only != 0 ? only : from_environment("CGX_SIM_FIRST", 1);
  const uint64_t count = only != 0 ? 1 : from_environment("CGX_SIM_SEEDS", 500);
  const bool go_on = from_environment("CGX_SIM_GO_ON", 0) != 0;
  uint64_t steps = 0, redos = 0, calls = 0, commits = 0, policies = 0, ended = 0, lost = 0,
           epochs = 0, trials = 0;
  std::map<std::string, std::pair<uint64_t, uint64_t>> kinds;  // how often, first seed
  Met met;
  // As many programs as are usually played meet every combination, or some more do.
  const uint64_t most = count < 500 ? count : 3 * count;
  uint64_t seed = first;
  for (; seed < first + count || (seed < first + most && !met.missing().empty()); ++seed) {
    Program program = program_of(seed);
    if (const char* const items = std::getenv("CGX_SIM_ITEMS"); items != nullptr && only != 0) {
      std::set<size_t> kept;
      std::istringstream numbers{std::string(items)};
      for (std::string number; std::getline(numbers, number, ',');)
        kept.insert(std::stoull(number));
      program = with_items(program, kept);
    }
    if (std::getenv("CGX_SIM_PRINT") != nullptr) std::cerr << program.text() << std::flush;
    const Verdict verdict = go_on ? play_apart(program) : play(program);
    steps += verdict.steps;
    redos += verdict.redos;
    calls += verdict.calls;
    commits += verdict.commits;
    policies += verdict.policies;
    epochs += verdict.epochs;
    trials += verdict.trials;
    ended += verdict.ended;
    lost += verdict.lost;
    met.add(verdict.covered);
    if (only != 0) {
      std::cerr << program.text();
      print_events(verdict);
    }
    if (verdict.violation.empty()) continue;
    if (go_on) {
      auto& [times, example] = kinds[kind_of(verdict.violation)];
      if (times++ == 0) example = seed;
      continue;
    }
    if (only == 0) {
      std::cerr << program.text();
      print_events(verdict);
    }
    ADD_FAILURE() << verdict.violation << "\nreplay with CGX_SIM_SEED=" << seed << "\n"
                  << small(program, verdict.violation);
    return;
  }
  std::cerr << seed - first << " programs: " << steps << " steps of ranks, " << redos << " redos, "
            << calls << " calls, " << commits << " commits, " << policies << " policies, " << epochs
            << " epochs, " << trials << " trials; " << ended << " ended early, " << lost
            << " lost a step\n";
  for (const auto& [kind, times] : kinds) {
    std::cerr << times.first << " x (e.g. " << times.second << ") " << kind << "\n";
  }
  EXPECT_TRUE(kinds.empty());
  if (std::getenv("CGX_SIM_COVERAGE") != nullptr) met.print();
  if (count >= 500) {
    EXPECT_EQ(met.missing(), "") << "combinations that no program has met";
  }
}

TEST(Programs, Replay) {
  for (uint64_t seed : {3u, 7u, 11u, 19u}) {
    const Program program = program_of(seed);
    const Verdict one = play(program), other = play(program);
    EXPECT_EQ(one.virtual_ns, other.virtual_ns) << seed;
    EXPECT_EQ(one.steps, other.steps) << seed;
    EXPECT_EQ(one.violation, other.violation) << seed;
  }
}

}  // namespace
}  // namespace cgx::sim
