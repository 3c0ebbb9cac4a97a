#include "cpu/team.h"

#include <sched.h>

#include <algorithm>
#include <cfenv>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hasten {
namespace {

constexpr int kPausesPerLook = 16;             // between looks at the clock, which costs about as much as 16 pauses
constexpr int kYields = 64;                    // after the spin, before the futex
constexpr int64_t kBarrierSpinNs = 30'000;     // a stolen vCPU comes back later than this; then others need the core
constexpr int64_t kMaxIdleSpinNs = 2'000'000;  // bounds what the team burns after the last step of a burst

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Denormals in softmax tails cost a hundred cycles each, and every table must treat them alike.
void set_float_environment() {
  std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _mm_setcsr(_mm_getcsr() | 0x0040);  // denormals are zero
#elif defined(__aarch64__)
  uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  asm volatile("msr fpcr, %0" ::"r"(fpcr | (uint64_t{1} << 24)));
#endif
}

// CPUs this process may run on, which may be fewer than the machine has.
int num_allowed_cpus() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
  return static_cast<int>(std::thread::hardware_concurrency());
}

void sleep_while(const std::atomic<uint32_t>& word, uint32_t old) {
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

// Wait until `word` is no longer `old`: spin, then yield, then sleep. `may_spin` is asked now and then; no: sleep at once.
template <typename MaySpin>
void wait_while(const std::atomic<uint32_t>& word, uint32_t old, int64_t spin_ns, MaySpin may_spin) {
  using Clock = std::chrono::steady_clock;
  if (spin_ns > 0) {
    const auto until = Clock::now() + std::chrono::nanoseconds(spin_ns);
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        pause();
      }
      if (!may_spin()) return sleep_while(word, old);
    } while (Clock::now() < until);
  }
  for (int i = 0; i < kYields; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    std::this_thread::yield();
  }
  sleep_while(word, old);
}

}  // namespace

int Member::next() { return team_->next_piece_.fetch_add(1, std::memory_order_relaxed); }

bool Member::barrier(const std::function<void()>* serial) { return team_->arrive(index_, serial); }

Team::Team(int num_threads) {
  if (num_threads < 1) throw std::invalid_argument("a team needs at least 1 thread, not " + std::to_string(num_threads));
  // With more threads than cores a spinning member keeps the one it waits for from running.
  const bool crowded = num_threads > num_allowed_cpus();
  barrier_spin_ns_ = crowded ? 1'000 : kBarrierSpinNs;
  places_ = std::vector<Place>(static_cast<size_t>(num_threads));
  threads_.reserve(static_cast<size_t>(num_threads));
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back();
  for (int i = 0; i < num_threads; ++i) {
    try {
      threads_[static_cast<size_t>(i)] = std::thread([this, i] { thread_main(i); });
    } catch (const std::system_error& error) {
      quit();
      throw std::runtime_error("the system gave " + std::to_string(i) + " of " + std::to_string(num_threads) +
                               " compute threads: " + error.code().message());
    }
  }
}

Team::~Team() {
  wait();
  quit();
}

void Team::quit() {
  quit_ = true;
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Team::start(Body body, std::function<void()> done) {
  if (running()) throw std::logic_error("the team already runs a job");
  if (ended_at_ != Clock::time_point{}) {
    // Well over twice the usual gap (four times a sample of it): a spin that ends just before the next step comes would park at
    // every step.
    const int64_t gap = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - ended_at_).count();
    const int64_t sample = std::min(4 * gap, kMaxIdleSpinNs);
    const int64_t usual = idle_spin_ns_.load(std::memory_order_relaxed);
    idle_spin_ns_.store(sample > usual ? sample : usual + (sample - usual) / 8, std::memory_order_relaxed);
  }
  body_ = std::move(body);
  done_ = std::move(done);
  stop_ = false;
  cancel_.store(false, std::memory_order_relaxed);
  next_piece_.store(0, std::memory_order_relaxed);
  finished_members_.store(0, std::memory_order_relaxed);
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
}

void Team::wait() {
  const uint32_t target = started_.load(std::memory_order_acquire);
  for (uint32_t seen; (seen = ended_.load(std::memory_order_acquire)) != target;) ended_.wait(seen, std::memory_order_acquire);
}

void Team::thread_main(int index) {
  set_float_environment();
  Member member(this, index);
  const auto share = [] {
    std::this_thread::yield();
    return true;
  };
  for (uint32_t seen = 0;;) {
    wait_while(started_, seen, idle_spin_ns_.load(std::memory_order_relaxed), share);
    ++seen;
    if (quit_) return;
    body_(member);
    finish();
  }
}

// The last member out ends the job; only then may the next one start, so nobody can miss a start.
void Team::finish() {
  if (finished_members_.fetch_add(1, std::memory_order_acq_rel) + 1 < size()) return;
  if (done_) done_();
  ended_at_ = Clock::now();
  ended_.fetch_add(1, std::memory_order_release);
  ended_.notify_all();
}

bool Team::has_own_cpu(int index) const {
  const int here = sched_getcpu();
  for (int i = 0; i < size(); ++i) {
    if (i != index && places_[static_cast<size_t>(i)].cpu.load(std::memory_order_relaxed) == here) return false;
  }
  return true;
}

bool Team::arrive(int index, const std::function<void()>* serial) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  places_[static_cast<size_t>(index)].cpu.store(sched_getcpu(), std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size()) {
    // Who spins on the CPU that a member waits for is waiting for himself. Sleeping frees it, unlike a yield, which may hand
    // it to another program, and who wakes up is put where there is room.
    wait_while(generation_, generation, barrier_spin_ns_, [&] { return has_own_cpu(index); });
    return !stop_;
  }
  if (serial != nullptr) (*serial)();
  stop_ = cancel_.load(std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  next_piece_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  return !stop_;
}

}  // namespace hasten
