# frozen_string_literal: true

require "dibs"
require "monitor"
require_relative "testing/key"

module Dibs
  # Testing has what tests of a program need that uses keys: a keeper in place of dibs serve, and a
  # Helper for RSpec and Minitest.
  module Testing
    # Keeper lends keys in this process, without a server, a thread or a sleep. Its clients are as those
    # of Dibs.connect, with the same errors. Time passes only by advance, by what waits for another
    # holder, and by what tries again while the keeper is away.
    #
    # A caller that waits for a key that another thread of the program holds does wait, until that
    # gives it back.
    class Keeper
      def initialize
        @monitor = Monitor.new
        @changed = @monitor.new_cond
        @now = 1e6
        @keys = Hash.new { |keys, name| keys[name] = Key.new(self) }
        @locals, @later = [], []
        @polls = Hash.new(0) # how many calls waited, by token
        @callers = {} # the threads that claimed, by token
        @others = {}  # the tokens of other holders, by key
      end

      # connect returns a client of the keeper. Its arguments are those of Dibs.connect, without the URL.
      def connect(**options)
        Client.new(self, **options)
      end

      # held_by_another lets another holder have the key, until release, or for that many seconds. It
      # raises Held if the key is held.
      def held_by_another(key, seconds = nil, namespace: "")
        grab(key, namespace)
        return unless seconds

        @monitor.synchronize { @later << [@now + Dibs.seconds(seconds, "seconds"), -> { release(key, namespace: namespace) }] }
        nil
      end

      # release lets the other holder give the key back.
      def release(key, namespace: "")
        token = @others.delete([namespace, key]) or return
        change { @keys[[namespace, key]].settle("token" => token) }
        nil
      end

      # abandoned leaves the key as a process does that died while it held it.
      def abandoned(key, namespace: "")
        grab(key, namespace)
        change { @keys[[namespace, key]].settle("token" => @others.delete([namespace, key]), "outcome" => "abandon") }
        nil
      end

      # lose takes the key away from its holder, who finds its lease lost now.
      def lose(key, namespace: "")
        change do
          @keys[[namespace, key]].take_away
          @locals.each { |local| local.renewer.look(key) }
        end
        nil
      end

      # advance lets so much time pass. Leases that are held are renewed meanwhile.
      def advance(seconds)
        ends = @now + Dibs.seconds(seconds, "seconds")
        change do
          while (due = [*@locals.map(&:due), *@later.map(&:first)].compact.min) && due <= ends
            @now = [@now, due].max
            now, @later = @later.partition { |at, _| at <= @now }
            now.each { |_, what| what.call }
            @locals.each(&:work)
          end
          @now = ends
        end
        nil
      end

      # away lets no call reach the keeper, while the block runs or until back.
      def away
        change { @away = true }
        return unless block_given?

        begin
          yield
        ensure
          back
        end
      end

      # back ends away.
      def back
        change { @away = false }
        nil
      end

      # What follows is for the clients: the keeper is an address with one server, and their clock.

      attr_reader :now # :nodoc:

      def servers # :nodoc:
        [self]
      end

      def clock # :nodoc:
        self
      end

      def connection # :nodoc:
        Connection.new(self)
      end

      def to_s # :nodoc:
        "dibs/testing"
      end

      def sleep(seconds) # :nodoc:
        advance(seconds)
      end

      def threads? # :nodoc:
        false
      end

      def drive(local) # :nodoc:
        @monitor.synchronize { @locals << local }
      end

      def away? # :nodoc:
        @away
      end

      # answer answers a call, as dibs serve does.
      def answer(method, path, body, connection) # :nodoc:
        @monitor.synchronize do
          return list(path) if method == "GET"

          call = JSON.parse(body)
          elements = call["claims"] || call["renewals"] || call["settlements"]
          return claims(elements, call["wait_ms"].to_i / 1000.0, connection) if path == "/v1/claim"

          verb = path == "/v1/renew" ? :renew : :settle
          answers = elements.map { |e| state(e).public_send(verb, e) }
          elements.each { |e| @callers.delete(e["token"]) } if verb == :settle
          @changed.broadcast
          json(answers)
        end
      end

      # wake has the callers look at what happened.
      def wake # :nodoc:
        change { nil }
      end

      private

      ENDLESS = 2000 # calls that wait
      private_constant :ENDLESS

      def change
        @monitor.synchronize { yield.tap { @changed.broadcast } }
      end

      def grab(key, namespace)
        token = SecureRandom.hex(16)
        change do
          answer = @keys[[namespace, key]].claim("token" => token, "ttl_ms" => Float::INFINITY, "owner" => { "host" => "elsewhere", "pid" => 1, "label" => "another" })
          raise Held.new("dibs: the key #{key.inspect} is held", key: key) unless answer["state"] == "granted"

          @others[[namespace, key]] = token
        end
      end

      def name(element)
        [element["namespace"] || "", element["key"] || element["key_b64"].unpack1("m0").force_encoding(Encoding::UTF_8)]
      end

      def state(element)
        @keys[name(element)]
      end

      def json(answers)
        Dibs::Connection::Answer.new("200", "application/json", JSON.generate(answers: answers))
      end

      def list(path)
        query = URI.decode_www_form(path[/\?(.*)/, 1] || "").to_h
        entry = { state: "held", runs: @keys[[query["namespace"] || "", query["key"]]].runs }
        Dibs::Connection::Answer.new("200", "application/x-ndjson", "#{JSON.generate(entry)}\n")
      end

      # claims answers claims, when the first of them is no longer held or the wait is over.
      def claims(asked, wait, connection)
        ends = @now + wait
        loop do
          answers = asked.map { |c| state(c).claim(c) }
          asked.each { |c| @callers[c["token"]] = Thread.current }
          return json(answers) if wait.zero? || @now >= ends || answers.any? { |a| a["state"] != "held" || !a["queued"] }

          raise EOFError, "the client is closed" if connection.cut?
          raise Errno::ECONNRESET if @away

          pause(asked, ends)
        end
      end

      # pause waits for the thread that has the key, or lets time pass.
      def pause(asked, ends)
        others = asked.flat_map { |c| state(c).before(c["token"]) }.filter_map { |token| @callers[token] }
        here = Thread.current
        # What a thread took that has ended, the main thread may give back.
        return wait_for_change(ends - @now) if others.any? { |t| !t.equal?(here) && (t.alive? || !here.equal?(Thread.main)) }
        token = asked[0]["token"] # a call that waits has one claim
        if ends - @now >= 19 && @later.empty? && @locals.any? { |l| l.endless?(token) } && (@polls[token] += 1) > ENDLESS
          raise "dibs: a caller waits for #{name(asked[0])[1].inspect}, which nobody gives back; limit its wait:, or call release"
        end
        place = asked.map { |c| (c["place_ttl_ms"] || 10_000) / 3000.0 }.min
        due = [*asked.filter_map { |c| state(c).due }, *@later.map(&:first)].select { |at| at > @now }
        advance([ends, @now + place, *due].min - @now)
      end

      # wait_for_change waits for other threads. If they change nothing in that time it is over here, too.
      def wait_for_change(seconds)
        ends = Dibs.now + seconds
        @changed.wait(seconds)
        advance(seconds) if Dibs.now >= ends
      end
    end

    # Connection is a connection to a keeper.
    class Connection # :nodoc:
      attr_reader :server, :used

      def initialize(keeper)
        @server = keeper
      end

      def open(_ends)
        raise Errno::ECONNREFUSED, "the keeper is away" if @server.away?

        @open = true
      end

      def open?
        @open
      end

      def stale?
        false
      end

      def exchange(method, path, body, _ends)
        raise Errno::ECONNRESET, "the keeper is away" if @server.away?

        @server.answer(method, path, body, self).tap { @used = @server.now }
      end

      def cut
        @cut = true
        @server.wake
      end

      def cut?
        @cut
      end

      def abandon; end

      def close; end
    end

    # Helper gives each test a keeper, and makes its client Dibs.default. In RSpec:
    #
    #   RSpec.configure { |config| config.include Dibs::Testing::Helper }
    #
    # In Minitest and ActiveSupport::TestCase: include Dibs::Testing::Helper in the class.
    module Helper
      def self.included(group)
        group.before { keeper } if defined?(RSpec::Core::ExampleGroup) && group <= RSpec::Core::ExampleGroup
      end

      # keeper is the keeper of the test.
      def keeper
        @dibs_keeper ||= Keeper.new.tap { |made| Dibs.default = made.connect }
      end

      # keys is its client, which is Dibs.default.
      def keys
        keeper && Dibs.default
      end

      def before_setup # :nodoc:
        super if defined?(super)
        keeper
      end
    end
  end
end
