# frozen_string_literal: true

require_relative "support"

class SemaphoreTest < Case
  include Dibs::Semaphore

  def setup
    super
    Dibs.default = @keys
  end

  def test_it_returns_what_the_block_returns
    assert_equal 1, with_semaphore_lock(@key) { |o| o == :locked ? 1 : 2 }
    @keys.lock(@key) do
      other = Thread.new { with_semaphore_lock(@key) { |o| o == :locked ? 1 : 2 } }
      assert_equal 2, other.value
    end
  end

  def test_a_namespace_is_a_part_of_the_key
    with_semaphore_lock(@key, namespace: "A::B%") { assert @keys.held?("A%3A%3AB%25:#{@key}") }
    assert_free "A%3A%3AB%25:#{@key}"
  end

  def test_held_inside_the_block_is_the_blocks_own
    outcomes = []
    assert_raises(Dibs::Held) do
      with_semaphore_lock(@key) do |o|
        outcomes << o
        @keys.lock(@key, wait: 0) { flunk }
      end
    end
    assert_equal [:locked], outcomes
  end

  def test_a_key_that_is_none_is_refused
    [nil, :a, 1, ""].each { |key| assert_raises(ArgumentError) { with_semaphore_lock(key, namespace: "n") { flunk } } }
  end

  def test_a_lock_of_a_manager_ends_with_its_ttl
    manager = Dibs::LockManager.new(@keys)
    assert manager.lock(@key, 0.2)
    wait("it ended") { !manager.locked?(@key) }
    refute manager.unlock(@key)
    assert manager.lock(@key, 600)
    refute manager.lock(@key, 600)
    assert manager.unlock(@key)
    refute manager.unlock(@key)
  end

  def test_only_the_thread_that_locked_a_key_unlocks_it
    manager = Dibs::LockManager.new(@keys)
    assert manager.lock(@key, 600)
    refute Thread.new { manager.unlock(@key) }.value
    refute Thread.new { manager.lock(@key, 600) || manager.unlock(@key) }.value
    refute Fiber.new { manager.unlock(@key) }.resume
    refute Dibs::LockManager.new(@keys).unlock(@key)
    assert manager.locked?(@key)
    assert manager.unlock(@key)
    Thread.new { manager.lock(@key, 600) }.join
    refute manager.unlock(@key)
    assert manager.locked?(@key)
  end

  def test_a_child_cannot_unlock_what_its_parent_locked
    manager = Dibs::LockManager.new(@keys)
    manager.lock(@key, 600)
    pid = fork { exit!(manager.unlock(@key) ? 1 : 0) }
    assert_predicate ended(pid), :success?
    assert manager.unlock(@key)
  end
end
