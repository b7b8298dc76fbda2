# frozen_string_literal: true

require_relative "support"
require "active_job"

ActiveJob::Base.logger = Logger.new(File::NULL)

# Jobs is a queue in memory, with workers that take any job.
class Jobs
  attr_reader :list

  def initialize
    @list = Queue.new
  end

  def enqueue(job)
    @list << job.serialize
  end

  def enqueue_at(job, _at)
    @list << job.serialize
  end

  # work runs jobs in so many threads until none is left.
  def work(threads)
    running = Queue.new
    Array.new(threads) do
      Thread.new do
        loop do
          running << 1
          data = begin
            @list.pop(true)
          rescue ThreadError
            nil
          end
          ActiveJob::Base.execute(data) if data
          running.pop
          break if @list.empty? && running.empty?

          sleep 0.005 unless data
        end
      end
    end.each(&:join)
  end
end

class JobTest < Case
  # Base is a job whose runs are noted.
  class Base < ActiveJob::Base
    include Dibs::ActiveJob
    dibs_key(wait: 0.05, retry_in: 0.01) { |key, *| key }

    class << self
      attr_accessor :runs
    end

    def perform(_key, number, *)
      Base.runs << [number, executions, dibs_lease&.held?]
    end
  end

  class Failing < Base
    retry_on(KeyError, wait: 0, attempts: 3)

    def perform(_key, number, *)
      super
      raise KeyError if executions < 3
    end
  end

  class Discarded < Base
    discard_on(KeyError)

    def perform(*)
      super
      raise KeyError
    end
  end

  class Stopped < Base
    before_enqueue { throw :abort }
  end

  class Own < Base
    def perform(key, *)
      Dibs.default.lock("#{key}/other", wait: 0) { nil }
    end
  end

  class Keyless < ActiveJob::Base
    include Dibs::ActiveJob

    def perform; end
  end

  class Symbolic < Base
    dibs_key { |*| :key }
  end

  def setup
    super
    Dibs.default = @keys
    Base.runs = Queue.new
    @jobs = Jobs.new
    ActiveJob::Base.queue_adapter = @jobs
  end

  def runs
    Array.new(Base.runs.size) { Base.runs.pop }
  end

  def test_jobs_run_in_the_order_in_which_they_were_enqueued_and_waiting_uses_no_attempt
    6.times { |i| Base.perform_later(@key, i) }
    data = Array.new(6) { @jobs.list.pop }
    data.reverse_each { |d| @jobs.list << d }
    @jobs.work(3)
    assert_equal 6.times.map { |i| [i, 1, true] }, runs
    assert_free
  end

  def test_a_job_that_fails_and_is_tried_again_keeps_its_place
    Failing.perform_later(@key, 1)
    Base.perform_later(@key, 2)
    @jobs.work(2)
    assert_equal [[1, 1, true], [1, 2, true], [1, 3, true], [2, 1, true]], runs
    assert_free
  end

  def test_a_job_that_fails_for_good_gives_its_place_back
    Discarded.perform_later(@key, 1)
    Base.perform_later(@key, 2)
    @jobs.work(1)
    assert_equal [[1, 1, true], [2, 1, true]], runs
    assert_free
  end

  def test_a_job_that_is_not_enqueued_leaves_no_place
    Stopped.perform_later(@key, 1)
    assert_empty @jobs.list
    assert_free
    def @jobs.enqueue(_job) = raise(IOError)
    assert_raises(IOError) { Base.perform_later(@key, 1) }
    assert_free
  end

  def test_perform_now_waits_for_its_turn
    lease = @keys.acquire(@key)
    thread = Thread.new { Base.perform_now(@key, 1) }
    wait("it waits") { @server.waiters(@key) == 1 }
    lease.release
    thread.join
    assert_equal [[1, 1, true]], runs
    assert_free
  end

  def test_a_held_key_of_the_jobs_own_is_its_error
    @keys.lock("#{@key}/other") do
      Own.perform_later(@key, 1)
      assert_raises(Dibs::Held) { ActiveJob::Base.execute(@jobs.list.pop) }
    end
    assert_empty @jobs.list
    assert_free
  end

  def test_a_job_without_a_key_is_refused
    assert_match(/dibs_key/, assert_raises(Dibs::Error) { Keyless.perform_later }.message)
    assert_match(/String/, assert_raises(ArgumentError) { Symbolic.perform_later(@key, 1) }.message)
  end
end
