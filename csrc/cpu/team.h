// One persistent team of compute threads, phases separated by barriers, work pulled in pieces.
//
// The thread that starts a job is no member: start() returns at once and wait() blocks. Every member runs the same body;
// inside it, a phase is "pull pieces until none is left, then barrier()":
//
//   team.start([&](Member& member) {
//     for (int piece; (piece = member.next()) < num_pieces;) work(piece);
//     if (!member.barrier()) return;  // cancelled: every member sees the same answer
//     ...
//   });
//
// Waiting, in a barrier or for the next job, is first a short spin (with pauses), then yields, then a futex: an idle team
// costs nothing, and more threads than cores still make progress. A member that waits in a barrier on another's CPU does not
// spin.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace hasten {

class Team;

// A thread's place in the job that is running. Only the thread it was given to may use it.
class Member {
 public:
  int index() const { return index_; }

  // The next piece of this phase: 0, 1, 2, … over the whole team, each handed out once.
  int next();

  // Wait for every member. The last one to arrive runs `serial` (may be null) while the others wait. Returns false when
  // the job is cancelled; the answer is the same for every member, so all leave the body at the same barrier.
  bool barrier(const std::function<void()>* serial = nullptr);

 private:
  friend class Team;
  Member(Team* team, int index) : team_(team), index_(index) {}
  Team* team_;
  int index_;
};

class Team {
 public:
  using Body = std::function<void(Member&)>;  // must not throw

  // Members compute with round-to-nearest-even, FTZ and DAZ. Throws std::invalid_argument unless num_threads >= 1, and
  // std::runtime_error when the system gives fewer threads.
  explicit Team(int num_threads);
  ~Team();  // waits for a running job
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Run `body` on every member; `done` (may be null) runs on the last member to finish, before wait() returns.
  // A job must not be running. From any thread that is no member.
  void start(Body body, std::function<void()> done = nullptr);
  void wait();  // until the job has ended; returns at once when none runs
  bool running() const { return ended_.load(std::memory_order_acquire) != started_.load(std::memory_order_acquire); }

  // Ask the running job to stop at its next barrier. Forgotten when the job ends. From any thread.
  void cancel() { cancel_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return stop_; }  // inside `done` or after wait(): the job was stopped at a barrier

 private:
  friend class Member;
  using Clock = std::chrono::steady_clock;

  void thread_main(int index);
  bool arrive(int index, const std::function<void()>* serial);
  bool has_own_cpu(int index) const;  // as far as the last arrivals tell
  void finish();
  void quit();  // end and join the members there are

  struct alignas(64) Place {
    std::atomic<int> cpu{-1};  // where the member last arrived at a barrier
  };

  std::vector<Place> places_;
  std::vector<std::thread> threads_;
  Body body_;
  std::function<void()> done_;
  int64_t barrier_spin_ns_;
  std::atomic<int64_t> idle_spin_ns_{0};
  Clock::time_point ended_at_{};  // by the thread that starts jobs, and by finish() before `ended_` is published
  bool stop_ = false;             // written between jobs or by the last to arrive at a barrier
  bool quit_ = false;

  // Each on its own cache line: they are written by different threads while others spin on them.
  alignas(64) std::atomic<int> next_piece_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};  // of barriers
  alignas(64) std::atomic<uint32_t> started_{0};     // jobs
  alignas(64) std::atomic<uint32_t> ended_{0};
  alignas(64) std::atomic<int> finished_members_{0};
  alignas(64) std::atomic<bool> cancel_{false};
};

}  // namespace hasten
