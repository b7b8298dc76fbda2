# frozen_string_literal: true

# Sidekiq with Active Job. The replies of a conversation are sent one at a time, in the order in which
# they were enqueued, by any number of workers. One that runs again sends nothing twice.
#
#   apt-get install ruby-sidekiq ruby-activejob
#   export DIBS_SERVER=unix:/tmp/dibs.sock REDIS_URL=redis://127.0.0.1:6379 RUBYLIB=clients/ruby/lib
#   sidekiq -c 5 -r ./examples/ruby/sidekiq.rb
#   ruby -r./examples/ruby/sidekiq.rb -e '5.times { |i| ReplyJob.perform_later("conversation 17", i) }'

require "active_job"
require "sidekiq"
require "dibs"

ActiveJob::Base.queue_adapter = :sidekiq

class ReplyJob < ActiveJob::Base
  include Dibs::ActiveJob
  dibs_key { |conversation, _reply| conversation }
  retry_on(Dibs::Unavailable, wait: 5, attempts: 10)

  def perform(conversation, reply)
    Dibs.default.once("#{conversation} reply #{reply}", keep: "7h") do
      $stdout.puts("begin #{conversation} #{reply}")
      sleep 0.05 # sends it
      $stdout.puts("end #{conversation} #{reply}")
      $stdout.flush
      true
    end
  end
end
