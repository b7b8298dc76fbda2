# frozen_string_literal: true

module Dibs
  # ActiveJob is a concern: jobs of one key run one at a time, in the order in which they were
  # enqueued. A job takes its place when it is enqueued. A job that has to wait is enqueued again
  # and uses no attempt. A job that failed and is retried by retry_on or retry_job keeps its place,
  # and blocks the others of its key until then.
  #
  #   class ReplyJob < ApplicationJob
  #     include Dibs::ActiveJob
  #     dibs_key { |conversation_id| "conversation #{conversation_id}" }
  #   end
  #
  # The client is Dibs.default.
  module ActiveJob
    def self.included(job)
      job.extend(ClassMethods)
      job.around_enqueue { |this, block| this.send(:dibs_enqueue, block) }
      job.around_perform { |this, block| this.send(:dibs_perform, block) }
    end

    # ClassMethods are those of a job's class.
    module ClassMethods
      # dibs_key says which key a job has: the block gets the job's arguments.
      #
      # wait: how long a job waits in its worker for its turn. Default: 2 seconds.
      # retry_in: after how long, about, it is enqueued again otherwise. Default: 2 seconds.
      # grace: how long its place keeps a free key from the others while no worker takes the job.
      # Default: 1 minute.
      # ttl: of the lease. place_ttl: of the place; default: 7 days.
      def dibs_key(wait: 2, retry_in: 2, grace: 60, ttl: nil, place_ttl: PLACE, &block)
        raise ArgumentError, "dibs: dibs_key needs a block that returns the key" unless block

        @dibs_job = { wait: Dibs.seconds(wait, "wait"), retry_in: Dibs.seconds(retry_in, "retry_in"),
                      grace: Dibs.seconds(grace, "grace"), ttl: ttl, place_ttl: place_ttl, key: block }.freeze
      end

      # dibs_job are the settings of the class or its superclass.
      def dibs_job # :nodoc:
        return @dibs_job if @dibs_job

        superclass.respond_to?(:dibs_job) ? superclass.dibs_job : raise(Error, "dibs: #{name} includes Dibs::ActiveJob and has no dibs_key")
      end
    end

    # dibs_lease is the lease of the job while it runs, or nil.
    attr_reader :dibs_lease

    def serialize # :nodoc:
      @dibs_sent = true
      @dibs_ticket ? super.merge("dibs_ticket" => @dibs_ticket) : super
    end

    def deserialize(data) # :nodoc:
      super
      @dibs_queued = true
      @dibs_ticket = data["dibs_ticket"]
    end

    # perform_now gives the place of a job back that has ended, whatever it ended by: at the
    # deserialization of its arguments, in a callback, or by an error. A job that was enqueued again
    # keeps its place. So does a worker that is told to stop, as if it had been killed with SIGKILL.
    def perform_now # :nodoc:
      @dibs_again = @dibs_unasked = false
      ended = false
      result = super
      ended = true
      result
    rescue StandardError
      ended = !@dibs_unasked
      raise
    ensure
      dibs_cancel if ended && @dibs_queued && !@dibs_again
    end

    private

    def dibs_enqueue(block)
      job = self.class.dibs_job
      mine = @dibs_ticket.nil?
      if mine
        @dibs_ticket = Dibs.default.reserve(dibs_key, ttl: job[:place_ttl], grace: dibs_grace(job), label: self.class.name)
      else
        Dibs.default.prolong(@dibs_ticket, ttl: job[:place_ttl], grace: dibs_grace(job))
      end
      @dibs_sent = false
      result = block.call
      sent = @dibs_sent || (respond_to?(:successfully_enqueued?) && successfully_enqueued?) # maybe when a transaction commits
      @dibs_again = true if sent
      result
    ensure
      dibs_cancel if mine && @dibs_ticket && !sent # a callback stopped it, or the queue refused it
    end

    # dibs_grace is how long the place may block: longer if the job is enqueued for later.
    def dibs_grace(job)
      job[:grace] + [(scheduled_at || 0).to_f - Time.now.to_f, 0].max
    end

    def dibs_perform(block)
      job = self.class.dibs_job
      options = { ttl: job[:ttl], label: self.class.name }
      return Dibs.default.lock(dibs_key, **options) { |lease| dibs_run(lease, block) } unless @dibs_queued

      began = false
      begin
        @dibs_ticket ||= Dibs.default.reserve(dibs_key, ttl: job[:place_ttl], grace: job[:grace], label: self.class.name)
        result = Dibs.default.redeem(@dibs_ticket, wait: job[:wait], grace: job[:grace], **options) do |lease|
          began = true
          dibs_run(lease, block)
        end
        @dibs_ticket = nil unless @dibs_again # it ended with the lease
        result
      rescue Held, Busy
        raise if began # the job's own

        self.executions -= 1
        retry_job(wait: job[:retry_in] * rand(0.75..1.25))
      rescue Error
        @dibs_unasked = !began
        raise
      end
    end

    # dibs_run runs the job. Only its end ends its place, too.
    def dibs_run(lease, block)
      @dibs_lease = lease
      result = block.call
      done = true
      result
    ensure
      @dibs_lease = nil
      dibs_undo(lease) if !done || @dibs_again
    end

    # dibs_undo ends the lease and keeps the place.
    def dibs_undo(lease)
      lease.undo
    rescue Lost
      nil
    rescue Error
      lease.undo_later
    end

    def dibs_key
      key = instance_exec(*arguments, &self.class.dibs_job[:key])
      key.is_a?(String) ? key : raise(ArgumentError, "dibs: the key of #{self.class.name} is a #{key.class}; the block of dibs_key must return a String")
    end

    def dibs_cancel
      ticket, @dibs_ticket = @dibs_ticket, nil
      Dibs.default.give_back(ticket) if ticket
    end
  end
end
