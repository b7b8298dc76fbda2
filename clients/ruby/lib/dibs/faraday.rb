# frozen_string_literal: true

require "faraday"
require_relative "send"

module Dibs
  # Faraday is a middleware of Faraday 1 and 2, with the arguments of Sender. Put it last, just before
  # the adapter:
  #
  #   require "dibs/faraday"
  #   connection = Faraday.new("https://pay.example") { |f| f.request :dibs, deadline: 60 }
  #   connection.post("/charges", "amount=700") { |r| r.options.context = { key: "order-17" } }
  #
  # The key is that of the request's context, or a new random one for each request.
  class Faraday < ::Faraday::Middleware
    # Cut is an answer of which a part did not arrive.
    class Cut < ::Faraday::ConnectionFailed; end

    BROKEN = [::Faraday::ConnectionFailed, ::Faraday::TimeoutError].freeze
    private_constant :BROKEN

    # Answer has the fields of a response by name.
    Answer = Struct.new(:response) do # :nodoc:
      def status
        response.status
      end

      def [](name)
        response.headers[name]
      end
    end
    private_constant :Answer

    def initialize(app, options = nil, **rest)
      super(app)
      @sender = Sender.new(**(options || {}).to_h, **rest)
    end

    def call(env)
      headers, body, timeout = env.request_headers, env.body, env.request.timeout
      @sender.name_key(env.method, headers, env.request.context&.fetch(:key, nil))
      headers["Accept-Encoding"] ||= "identity" # else it cannot be seen that an answer is cut
      last = @sender.repeat(BROKEN) do |left|
        env.body = body
        body.rewind if body.respond_to?(:rewind)
        env.request.timeout = [timeout, left].compact.min
        answer = Answer.new(@app.call(env))
        Sender.whole(answer, env.method == :head ? nil : answer.response.body)
      rescue EOFError => e
        raise Cut, e.message
      end
      last.response
    end
  end

  ::Faraday::Request.register_middleware(dibs: Faraday)
end
