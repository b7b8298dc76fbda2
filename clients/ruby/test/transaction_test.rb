# frozen_string_literal: true

require_relative "support"
require "delegate"

# A lease that ends with a transaction of the application, on PostgreSQL. DIBS_DATABASE is the URL
# of a database that the tests may fill.
class TransactionTest < Case
  DATABASE = ENV["DIBS_DATABASE"]

  class << self
    # store is a `dibs serve` on the database, with a credential that decides the namespace, too.
    def store
      @store ||= begin
        require "pg"
        system(ENV.fetch("DIBS_PROGRAM"), "migrate", "--store", "#{DATABASE}&schema=leases", out: File::NULL, exception: true)
        PG.connect(DATABASE).exec("CREATE TABLE effects (id text NOT NULL); CREATE ROLE app LOGIN;" \
          "CREATE ROLE nobody LOGIN; GRANT USAGE ON SCHEMA leases TO nobody;" \
          "GRANT INSERT, SELECT ON effects TO app; GRANT USAGE ON SCHEMA leases TO app;" \
          "GRANT EXECUTE ON FUNCTION leases.dibs_settle_in, leases.dibs_reserve_in TO app")
        tokens = "#{Support.dir}/tokens"
        File.write(tokens, "shop #{Digest::SHA256.hexdigest("secret")} shop use\n")
        # Two servers of one store.
        [Server.new(store: "#{DATABASE}&schema=leases"),
         Server.new("--tokens", tokens, store: "#{DATABASE}&schema=leases", listen: "127.0.0.1:0")]
          .each { |s| Minitest.after_run { s.stop } }
      end
    end
  end

  def setup
    skip "DIBS_DATABASE is not set" unless DATABASE
    super
    @server, @guarded = self.class.store
    @keys.close
    @keys = @server.keys(schema: "leases")
    @app = PG.connect(DATABASE.sub("//postgres@", "//app@"))
  end

  def teardown
    @app&.close unless @app&.finished?
    super if DATABASE
  end

  # effect writes the effect of the test.
  def effect
    @app.exec_params("INSERT INTO effects VALUES ($1)", [@key])
  end

  def effects
    @app.exec_params("SELECT count(*) FROM effects WHERE id = $1", [@key]).getvalue(0, 0).to_i
  end

  def record
    @keys.acquire(@key, wait: 0, max_age: :any).release && nil
  rescue Dibs::Done => e
    e.record
  end

  def test_the_effect_and_the_record_are_committed_together
    @keys.lock(@key) do |lease|
      @app.transaction do
        effect
        lease.complete_in(@app, "\xff\\'\0".b, keep: "1h")
      end
    end
    assert_equal [1, "\xff\\'\0".b], [effects, record]
  end

  def test_a_transaction_that_is_rolled_back_leaves_nothing_and_may_be_made_again
    @keys.lock(@key) do |lease|
      2.times do |i|
        @app.transaction do
          effect
          lease.complete_in(@app, "record")
          raise PG::TRSerializationFailure if i.zero?
        end
      rescue PG::TRSerializationFailure
        assert_equal 0, effects
      end
    end
    assert_equal [1, "record"], [effects, record]
  end

  def test_a_rolled_back_transaction_gives_the_key_back
    assert_raises(KeyError) do
      @keys.lock(@key, ttl: 600) do |lease|
        @app.transaction { effect; lease.complete_in(@app, "record") && nil; raise KeyError }
      end
    end
    assert_nil record
    assert_equal 0, effects
    assert_free
  end

  def test_without_data_it_releases
    @keys.lock(@key, ttl: 600) { |lease| @app.transaction { effect; lease.complete_in(@app, nil) } }
    assert_nil record
    assert_equal 1, effects
  end

  def test_a_lease_without_a_block_is_released_after_the_transaction
    lease = @keys.acquire(@key, ttl: 600)
    @app.transaction { effect; lease.complete_in(@app, "record") }
    lease.release
    assert_equal "record", record
    lease = @keys.acquire("#{@key}/2", ttl: 600)
    assert_raises(KeyError) { @app.transaction { lease.complete_in(@app, "record"); raise KeyError } }
    lease.release
    assert_free "#{@key}/2"
  end

  def test_a_renewal_after_the_commit_is_no_loss
    @keys.lock(@key, ttl: 600) do |lease|
      @app.transaction { effect; lease.complete_in(@app, "record") }
      @keys.send(:local).renewer.send(:renew, [lease], LIMIT)
      assert lease.held?
    end
    assert_equal "record", record
  end

  def test_a_lost_lease_rolls_back
    assert_raises(Dibs::Lost) do
      @keys.lock(@key, ttl: 600) do |lease|
        @server.keys.send(:local).call("settle", [lease.named])
        @app.transaction { effect; lease.complete_in(@app, "record") }
      end
    end
    assert_equal 0, effects
    assert_nil record
  end

  def test_what_is_refused
    outside = assert_raises(Dibs::WrongTransaction) { @keys.lock(@key) { |lease| lease.complete_in(@app, "record") } }
    assert_match(/begin one/, outside.message)
    failed = assert_raises(Dibs::WrongTransaction) do
      @keys.lock(@key) do |lease|
        @app.transaction { @app.exec("SELECT 1/0") rescue nil; lease.complete_in(@app, "record") }
      end
    end
    assert_match(/a statement of it failed/, failed.message)
    assert_raises(ArgumentError) { @keys.lock(@key) { |lease| lease.complete_in(Object.new, "record") } }
    assert_raises(ArgumentError) { @keys.lock(@key, permits: 2) { |lease| @app.transaction { lease.complete_in(@app, "record") } } }
    [@server.keys(schema: "nowhere"), @server.keys(schema: "information_schema"), @server.keys(schema: "leases", prefix: "older")].each do |keys|
      error = assert_raises(Dibs::Refused) { keys.lock(@key) { |lease| @app.transaction { lease.complete_in(@app, "record") } } }
      assert_match(/dibs migrate/, error.message)
    end
    nobody = PG.connect(DATABASE.sub("//postgres@", "//nobody@"))
    error = assert_raises(Dibs::Forbidden) { @keys.lock(@key) { |lease| nobody.transaction { lease.complete_in(nobody, "record") } } }
    assert_match(/GRANT/, error.message)
    nobody.close
    assert_free
  end

  def test_the_credential_decides_the_namespace
    keys = @guarded.keys_with("secret", schema: "leases")
    keys.lock(@key) { |lease| @app.transaction { effect; lease.complete_in(@app, "record") } }
    assert_raises(Dibs::Done) { keys.acquire(@key, max_age: :any) }
    ticket = @app.transaction { keys.reserve_in(@app, "#{@key}/2") }
    assert_raises(Dibs::Held) { keys.lock("#{@key}/2", wait: 0) { flunk } }
    assert_equal 1, keys.redeem(ticket, wait: 0) { 1 }
    keys.close
  end

  def test_once_in_a_transaction
    runs = 0
    2.times do
      assert_equal({ "id" => 17 }, @keys.once(@key, keep: "1h", in: @app) { runs += 1; effect; { id: 17 } })
    end
    assert_equal [1, 1], [runs, effects]
    assert_equal 5, @keys.once("#{@key}/nothing written", in: @app) { 5 }
  end

  def test_an_error_of_once_rolls_back
    assert_raises(KeyError) { @keys.once(@key, in: @app) { effect; raise KeyError } }
    assert_raises(Dibs::NotKept) { @keys.once(@key, in: @app) { effect; Object.new } }
    assert_raises(KeyError) { @keys.once(@key, in: @app, remember: KeyError) { effect; raise KeyError, "declined" } }
    assert_raises(Dibs::Remembered) { @keys.once(@key, in: @app) { flunk } }
    assert_equal 0, effects
  end

  def test_ways_out_of_once_roll_back
    assert_raises(Dibs::WrongTransaction) { @keys.once(@key, in: @app) { effect; break 1 } }
    assert_raises(Dibs::WrongTransaction) { catch(:out) { @keys.once(@key, in: @app) { effect; throw :out } } }
    error = assert_raises(Dibs::WrongTransaction) { @keys.once(@key, in: @app) { effect; @app.exec("COMMIT; BEGIN"); effect; 1 } }
    assert_match(/leave that to once/, error.message)
    assert_equal 1, effects # which the block committed itself
    assert_raises(Dibs::WrongTransaction) { @app.transaction { @keys.once(@key, in: @app) { flunk } } }
    assert_free
  end

  def test_a_killed_thread_rolls_back
    { "idle" => -> { sleep }, "active" => -> { @app.exec("SELECT pg_sleep(600)") } }.each do |state, work|
      inside = Queue.new
      thread = Thread.new { @keys.once(@key, in: @app, ttl: 600) { effect; inside << true; work.call } }
      inside.pop
      wait("it is #{state}") { thread.status == "sleep" }
      thread.kill.join
      assert_equal 0, effects
      assert_free
    end
  end

  def test_the_answer_to_commit_is_lost
    lost = @keys.once(@key, in: Cut.new(@app)) { effect; "result" }
    assert_equal "result", lost
    other = PG.connect(DATABASE)
    assert_equal "result", @keys.once(@key, in: other) { flunk }
    assert_raises(PG::Error) { @keys.once("#{@key}/2", in: Cut.new(other, before: true)) { 1 } }
    assert_nil @keys.once("#{@key}/2", in: PG.connect(DATABASE)) { nil }
  end

  # Failing is a connection on which a statement fails after the block, and its error is swallowed.
  class Failing < SimpleDelegator
    def raw_connection
      __getobj__
    end

    def transaction
      exec("BEGIN")
      yield
      exec("SELECT 1/0") rescue nil
      exec("COMMIT")
    end
  end

  # PostgreSQL says so without an error.
  def test_commit_is_answered_with_rollback
    error = assert_raises(Dibs::WrongTransaction) { @keys.once(@key, in: Failing.new(@app), remember: Dibs::Error) { effect; 1 } }
    assert_match(/answered COMMIT with ROLLBACK/, error.message)
    assert_equal 0, effects
    assert_free
    assert_equal 2, @keys.once(@key, in: @app) { effect; 2 }
    assert_equal 1, effects
  end

  def test_a_result_that_cannot_be_stored_rolls_back
    [{}, { rerun: true }, { remember: StandardError }].each do |options|
      error = assert_raises(Dibs::NotKept) { @keys.once(@key, in: @app, **options) { effect; Time.now } }
      assert_match(/rolled back.*the next caller runs/, error.message)
      assert_nil error.result
    end
    assert_equal 0, effects
    assert_free
  end

  # The function says so with 22023, which stands here for a store with another bound.
  def test_a_result_that_is_too_large_rolls_back
    PG.connect(DATABASE).exec(<<~SQL)
      CREATE SCHEMA IF NOT EXISTS bounded;
      CREATE OR REPLACE FUNCTION bounded.dibs_settle_in(text, text, text, interval, text, text, text) RETURNS boolean LANGUAGE plpgsql
        AS $$ BEGIN RAISE EXCEPTION 'dibs: the record has 3 bytes; it may have 2' USING ERRCODE = '22023'; END $$;
      GRANT USAGE ON SCHEMA bounded TO app;
    SQL
    keys = @server.keys(schema: "bounded")
    error = assert_raises(Dibs::NotKept) { keys.once(@key, in: @app) { effect; 1 } }
    assert_match(/rolled back.*the record has 3 bytes/m, error.message)
    assert_raises(Dibs::TooLarge) { keys.lock(@key) { |lease| @app.transaction { lease.complete_in(@app, "record") } } }
    assert_equal 0, effects
    assert_free
  ensure
    keys&.close
  end

  # Cut is a connection that breaks at COMMIT: after it was carried out, or before.
  class Cut
    def initialize(connection, before: false)
      @connection, @before = connection, before
    end

    def raw_connection
      @connection
    end

    def transaction
      @connection.exec("BEGIN")
      yield
      @connection.exec("COMMIT") unless @before
      @connection.close
      raise PG::ConnectionBad, "cut"
    end
  end

  def test_active_record
    require "active_record"
    base = Class.new(ActiveRecord::Base) { self.abstract_class = true }
    Object.const_set(:TransactionRecord, base) # a class with a connection needs a name
    base.establish_connection(DATABASE.sub("//postgres@", "//app@"))
    @keys.lock(@key) do |lease|
      base.transaction { base.connection.execute("INSERT INTO effects VALUES ('ar')") && lease.complete_in(base, "1") }
    end
    assert_equal "1", record
    2.times { assert_equal 2, @keys.once("#{@key}/2", in: base) { base.transaction { base.connection.execute("INSERT INTO effects VALUES ('ar')") } && 2 } }
    assert_raises(Dibs::NotKept) { @keys.once("#{@key}/3", in: base.connection) { base.connection.execute("INSERT INTO effects VALUES ('ar')"); raise ActiveRecord::Rollback } }
    assert_raises(Dibs::WrongTransaction) { base.transaction { @keys.once("#{@key}/3", in: base) { flunk } } }
    record = Class.new(base) { self.table_name = "effects"; before_commit { self.class.connection.execute("SELECT 1/0") rescue nil } }
    assert_raises(Dibs::WrongTransaction) { @keys.once("#{@key}/3", in: base) { record.create!(id: "ar") && 3 } }
    assert_equal [["2"]], @app.exec("SELECT count(*) FROM effects WHERE id = 'ar'").values
  ensure
    base&.connection_pool&.disconnect!
  end

  def test_a_place_in_a_transaction
    ticket = @app.transaction { effect; @keys.reserve_in(@app, @key, ttl: "1h", grace: 60) }
    assert_equal 1, @server.entry(@key).fetch("reserved")
    assert_raises(Dibs::Held) { @keys.lock(@key, wait: 0) { flunk } }
    assert_equal 2, @keys.redeem(ticket) { 2 }
    assert_raises(KeyError) { @app.transaction { @keys.reserve_in(@app, @key); raise KeyError } }
    assert_free
  end
end
