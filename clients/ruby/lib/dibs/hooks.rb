# frozen_string_literal: true

module Dibs
  class << self
    # logger gets a line for each event, nil: none. It is anything with the methods of Logger.
    attr_accessor :logger
  end

  # Hooks tell the program what happens to its keys, by Dibs.logger and by ActiveSupport::Notifications
  # if that is loaded, where an event is "acquired.dibs". Its payload has the key as messages name it,
  # its namespace, the message, and what is behind each event here:
  #
  #   acquired     a lease begins: fence, attempt
  #   waited       a lease begins after a wait: waited, in seconds
  #   skipped      another holder has the key, and the caller does not get it: waited
  #   lost         a lease was lost
  #   undone       a claim was not answered, or its caller left, and is undone in the background
  #   unavailable  no server answered: error
  #
  # What a logger or a subscriber raises is ignored, because a lease depends on it.
  module Hooks # :nodoc:
    LEVELS = { acquired: :debug, waited: :debug, skipped: :info, lost: :warn, undone: :info, unavailable: :warn }.freeze
    private_constant :LEVELS

    module_function

    def tell(event, claim, text, **facts)
      name = "#{event}.dibs"
      listens = defined?(ActiveSupport::Notifications) && ActiveSupport::Notifications.notifier.listening?(name)
      return unless listens || Dibs.logger

      message = "dibs: #{event}: #{text}: #{claim.shown}"
      Dibs.logger&.public_send(LEVELS.fetch(event), message)
      return unless listens

      ActiveSupport::Notifications.instrument(name, key: claim.shown, namespace: claim.namespace, message: message, **facts)
    rescue StandardError
      nil
    end
  end
end
