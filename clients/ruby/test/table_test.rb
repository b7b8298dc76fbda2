# frozen_string_literal: true

require_relative "support"
require "dibs/testing"

# The cases that each client passes with a server, and with the keeper of its tests.
class TableTest < Case
  TABLE = JSON.parse(File.read(File.expand_path("../../testdata/testing.json", __dir__)))

  class Declined < StandardError; end

  # Real is a server with the methods of a keeper.
  class Real < Server
    alias connect keys
    alias lose take
    alias away kill
    alias back start

    def held_by_another(key)
      @another = keys(label: "another").acquire(key, wait: 0, ttl: 600)
    end

    def release(_key)
      @another.release
    rescue Dibs::Lost
      nil
    end

    def abandoned(key)
      keys.acquire(key).abandon
    end

    def advance(time)
      sleep(Dibs.seconds(time, "time"))
    end
  end

  class << self
    def real
      @real ||= Real.new.tap { |r| Minitest.after_run { r.stop } }
    end
  end

  { "server" => -> { real }, "keeper" => -> { Dibs::Testing::Keeper.new } }.each do |name, world|
    TABLE["cases"].each do |c|
      define_method("test_#{c["name"]}_with_a_#{name}") do
        @key += "\xff".b if c["bytes"]
        play(self.class.instance_exec(&world), c["steps"])
      end
    end
    TABLE["calls"].each do |c|
      define_method("test_that_#{c["name"]}_with_a_#{name}") { raw(self.class.instance_exec(&world), c["calls"]) }
    end
  end

  def play(world, steps)
    @world, @fence = world, 0
    @leases, @tickets, @waiters = {}, {}, {}
    @clients = Hash.new { |all, name| all[name] = world.connect(namespace: name == "elsewhere" ? name : "") }
    steps.each do |what, args = {}, gives = {}|
      got = outcome { call(*what.split("."), **args.transform_keys(&:to_sym)) }
      facts = gives.keys.to_h { |fact| [fact, fact == "raises" ? got.class.name.split("::").last : value(got, fact)] }
      assert_equal gives, facts, "#{what} #{args} gives #{got.inspect}"
      flunk "#{what} #{args} raises #{got.inspect}" if got.is_a?(Exception) && !gives["raises"]
    end
  ensure
    @clients.each_value(&:close)
  end

  def outcome
    yield
  rescue Dibs::Error, Declined => e
    e
  end

  def value(got, fact)
    case fact
    when "is" then got
    when "held" then got.held?
    when "holder" then got.holder.label
    when "id" then @leases.keys.find { |name| @leases[name].id == got.id }
    else got.public_send(fact).then { |v| v.is_a?(String) ? v.dup.force_encoding("UTF-8") : v }
    end
  end

  def call(whose, method, by: "a", as: "it", waits: nil, **args)
    case whose
    when "keeper" then @world.public_send(method, *(%w[away back].include?(method) ? [] : [args[:time] || @key]))
    when "lease" then @leases[as].public_send(method, *args.delete(:data), **args)
    when "waiter" then noted(as, @waiters[as].value)
    else
      return noted(as, ask(@clients[by], method, as, **args)) unless waits

      @waiters[as] = Thread.new { outcome { ask(@clients[by], method, as, **args) } }
      wait("it waits") { waits.zero? || outcome { @clients["b"].acquire(@key, wait: 0, **args.slice(:permits, :weight)) }.ahead == waits }
    end
  end

  # noted notes a lease by its name. Its fence is higher than those before.
  def noted(name, got)
    return got unless got.is_a?(Dibs::Lease)

    @fence = got.fence.tap { |fence| assert_operator fence, :>, @fence } if got.held? && got.client.namespace.empty?
    @leases[name] = got
  end

  def ask(client, method, as, value: nil, fails: false, remember: false, unstorable: false, of: as, ends: nil, **args)
    args[:max_age] = :any if args[:max_age] == "any"
    args[:fingerprint] *= 64 if args[:fingerprint]
    case method
    when "held" then client.held?(@key)
    when "close" then client.close
    when "acquire" then client.acquire(@key, **args)
    when "reserve" then @tickets[as] = client.reserve(@key, **args)
    when "redeem" then client.redeem(@tickets[of], **args) { |lease| lease.tap { ends && lease.public_send(ends) } }
    when "once"
      client.once(@key, with_origin: true, remember: remember ? Declined : [], **args) { fails ? raise(Declined) : unstorable ? Object.new : value }
    else client.public_send(method, @tickets[as], **args)
    end
  end

  DEFAULTS = { "claim" => { ttl_ms: 600_000, place_ttl_ms: 600_000 }, "renew" => { ttl_ms: 600_000 }, "settle" => {} }.freeze

  # raw makes calls of one element.
  def raw(world, calls)
    here = world.connect.send(:local)
    calls.each_with_index do |(verb, token, fields, answer), i|
      next world.advance(token / 1000.0) if verb == "pass"

      element = { key: @key, token: token * 32, **DEFAULTS.fetch(verb), **fields.transform_keys(&:to_sym) }
      { from: 32, fingerprint: 64 }.each { |name, size| element[name] *= size if element[name] }
      %i[progress data].each { |name| element[name] = [element[name]].pack("m0") if element[name] }
      assert_equal answer, plain(here.call(verb, [element])[0][0]), "call #{i} of #{calls}"
    end
  end

  # plain is what the table says of an answer.
  def plain(answer)
    { "state" => answer["state"], "queued" => answer["queued"] || nil, "attempt" => answer["attempt"].then { |n| n if n != 1 },
      "progress" => answer["progress"]&.unpack1("m0"), "record" => answer["record"]&.fetch("data")&.unpack1("m0"),
      "error" => answer.dig("error", "type") }.compact
  end
end
