# frozen_string_literal: true

require_relative "support"

# Processes that are killed, stopped and forked.
class ProcessTest < Case
  def test_a_stopped_process_finds_its_lease_lost
    pid, to, from = script(@server.url, <<~RUBY)
      keys = Dibs.connect
      begin
        keys.lock(#{@key.inspect}, ttl: 3) do |lease|
          puts "held"
          gets
          [:check, :fence].each { |m| begin; lease.send(m); puts "trusted"; rescue Dibs::Lost; puts m; end }
        end
        puts "trusted"
      rescue Dibs::Lost
        puts "lost"
      end
    RUBY
    assert_equal "held", line(from)
    Process.kill("STOP", pid)
    @keys.lock(@key) do |lease|
      assert_equal 2, lease.attempt
      to.puts
      Process.kill("CONT", pid)
      assert_equal %w[check fence lost], Array.new(3) { line(from) }
      lease.check
    end
    ended(pid)
  ensure
    Process.kill("CONT", pid) rescue nil
  end

  def test_a_killed_process_leaves_an_abandoned_lease
    pid, _, from = script(@server.url, "Dibs.connect.lock(#{@key.inspect}, ttl: 3) { puts 'held'; sleep }")
    assert_equal "held", line(from)
    Process.kill("KILL", pid)
    ended(pid)
    @keys.lock(@key) { |lease| assert_equal 2, lease.attempt }
  end

  def test_a_forked_child_owns_no_lease_of_its_parent
    @keys.lock(@key, ttl: 600) do |lease|
      from, output = IO.pipe
      pid = fork do
        begin
          lease.check
          output.puts "trusted"
        rescue Dibs::Lost
          output.puts "lost"
        end
        begin
          lease.release
          output.puts "released"
        rescue Dibs::Lost
          output.puts "lost"
        end
        output.puts @keys.lock("#{@key}/child", ttl: 600) { |l| l.check; "locked" }
        output.close
        exit! 0
      end
      output.close
      assert_equal %w[lost lost locked], Array.new(3) { line(from) }
      ended(pid)
      lease.check
      assert_equal lease.id, @server.entry(@key)["runs"][0]["id"]
    end
    assert_free
  end

  def test_a_child_that_leaves_its_parents_block_changes_nothing
    @keys.lock(@key, ttl: 600) do |lease|
      pid, _, from = script(@server.url, <<~RUBY)
        keys = Dibs.connect
        begin
          keys.lock(#{"#{@key}/2".inspect}, ttl: 600) do |lease|
            if pid = fork
              Process.wait(pid)
              puts lease.held?
            end
          end
        rescue Dibs::Lost
          puts "the child's block ends with Lost"
        end
      RUBY
      assert_equal ["the child's block ends with Lost", "true"], Array.new(2) { line(from) }
      assert_predicate ended(pid), :success?
      lease.check
    end
    assert_free("#{@key}/2")
  end

  def test_a_child_starts_its_own_renewer
    @keys.acquire("#{@key}/parent", ttl: 600).release # the parent has threads and connections
    from, output = IO.pipe
    pid = fork do
      lease = @keys.acquire(@key, ttl: 3)
      wait_renewed(lease)
      output.puts "renewed"
      lease.release
      exit! 0
    end
    assert_equal "renewed", line(from)
    ended(pid)
    assert_free
  end

  def test_parent_and_child_use_connections_of_their_own
    @keys.lock(@key) { nil } # the parent keeps a connection
    pids = Array.new(2) do |c|
      fork do
        20.times { |i| @keys.lock("#{@key}/#{c}/#{i}") { |l| l.check } }
        exit! 0
      end
    end
    20.times { |i| @keys.lock("#{@key}/p/#{i}", &:check) }
    assert(pids.all? { |pid| ended(pid).success? })
  end
end
