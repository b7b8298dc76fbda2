# frozen_string_literal: true

# Two equal requests create a lesson's session. First the usual code, which is broken: both look,
# both find nothing, both create. In production that is bad luck; here it is certain, because
# both wait until the other has looked. Then the two cures.
#
#   DIBS_SERVER=unix:/tmp/dibs.sock ruby -Iclients/ruby/lib examples/ruby/session.rb

require "dibs"
require "securerandom"

Dibs.default = KEYS = Dibs.connect
include Dibs::Semaphore

# Meeting is where callers wait until all are there.
class Meeting
  def initialize(callers)
    @missing, @lock, @all = callers, Mutex.new, ConditionVariable.new
  end

  def wait
    @lock.synchronize do
      @missing -= 1
      @all.broadcast if @missing <= 0
      @all.wait(@lock) while @missing.positive?
    end
  end
end

# twice runs two requests at once and returns their answers.
def twice(&request)
  Array.new(2) { Thread.new(&request) }.map(&:value)
end

def count(sessions)
  "#{sessions.size} session#{"s" if sessions.size > 1}"
end

# The usual code.
sessions = Queue.new
looked = Meeting.new(2)
twice do
  missing = sessions.empty?
  looked.wait
  sessions << SecureRandom.uuid if missing
end
puts "without a lock: #{count(sessions)}"
broken = sessions.size == 2

# A request that comes while another runs is skipped.
sessions = Queue.new
lesson = "lesson #{SecureRandom.uuid}"
asked = Meeting.new(2)
outcomes = twice do
  with_semaphore_lock(lesson, ttl: 10, namespace: "sessions") do |outcome|
    asked.wait
    sessions << SecureRandom.uuid if outcome == :locked && sessions.empty?
    outcome
  end
end
puts "with_semaphore_lock: #{count(sessions)}, #{outcomes.count(:skipped)} request skipped"
cured = sessions.size == 1

# Both requests get the session.
sessions = Queue.new
answers = twice do
  KEYS.once("#{lesson}/once", keep: "24h") { SecureRandom.uuid.tap { |id| sessions << id } }
end
puts "once: #{count(sessions)}, #{answers.uniq.size == 1 ? "both requests have it" : "the requests differ"}"

abort "the cure did not hold" unless broken && cured && sessions.size == 1 && answers.uniq.size == 1
