# frozen_string_literal: true

require "net/http"
require "openssl"
require "securerandom"
require "time"

module Dibs
  # Sender sends requests that change something, through `dibs proxy` or to a server that honours
  # Idempotency-Key. It sends a request again when that is safe, with the same key, so that the server
  # runs it once. It needs no dibs serve. This is the form for Net::HTTP, and dibs/faraday has that for
  # Faraday.
  #
  #   require "dibs/send"
  #   uri = URI("https://pay.example/charges")
  #   request = Net::HTTP::Post.new(uri).tap { |r| r.body = "amount=700" }
  #   answer = Dibs::Sender.new.call(uri, request, key: "order-17")
  #
  # docs/guides/retrying-clients.md says what is sent again.
  class Sender
    SAFE = %w[GET HEAD OPTIONS TRACE].freeze
    FIELDS = %w[Idempotency-Key X-Idempotency-Key].freeze
    BROKEN = [SystemCallError, IOError, SocketError, OpenSSL::SSL::SSLError, Net::OpenTimeout, Net::ReadTimeout, Net::WriteTimeout,
              Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError, Net::ProtocolError].freeze # and no Timeout::Error of the caller
    private_constant :SAFE, :FIELDS, :BROKEN

    # Clock is the time of the process.
    module Clock # :nodoc:
      module_function

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      def sleep(seconds)
        Kernel.sleep(seconds)
      end
    end

    # max_tries: how often a request is sent at most. deadline: how long all tries may take, in seconds;
    # nil: no limit. backoff: the pause after the first try; it doubles up to max_backoff. An answer that
    # asks for a longer pause is returned at once.
    def initialize(max_tries: 5, deadline: nil, backoff: 0.1, max_backoff: 30, clock: Clock)
      { max_tries: max_tries, deadline: deadline || 1, backoff: backoff, max_backoff: max_backoff }.each do |name, value|
        raise ArgumentError, "dibs: #{name} is #{value.inspect}; it must be a number above 0" unless value.is_a?(Numeric) && value.positive?
      end
      @max_tries, @deadline, @backoff, @max_backoff, @clock = max_tries, deadline, backoff, max_backoff, clock
    end

    # call sends a request of Net::HTTP and returns the last answer, whole. to is a URI or a Net::HTTP.
    # key: 1 to 255 printable characters of ASCII, the same for all tries of one intention, even after
    # a restart. Default: a new random one. A field Idempotency-Key of the request is kept. It raises
    # what Net::HTTP raises if the last try has no answer.
    def call(to, request, key: nil)
      named = name_key(request.method, request, key)
      read_body(request)
      request["Accept-Encoding"] = "identity" if request.decode_content # else it cannot be seen that an answer is cut
      repeat(BROKEN) do |left|
        request.body_stream&.rewind
        to.is_a?(URI) ? open(to, left) { |http| exchange(http, request) } : exchange(to, request)
      end
    ensure
      request.delete("Idempotency-Key") if named # the next call with the request is another intention
    end

    # name_key gives a request its key. fields are its fields, by name.
    def name_key(method, fields, key) # :nodoc:
      return if SAFE.include?(method.to_s.upcase) || FIELDS.any? { |name| !fields[name].to_s.empty? }

      key ||= SecureRandom.hex(16)
      raise ArgumentError, "dibs: a key has 1 to 255 printable characters of ASCII" unless key.is_a?(String) && key.match?(/\A[ -~]{1,255}\z/)

      fields["Idempotency-Key"] = "\"#{key.gsub(/["\\]/) { |c| "\\#{c}" }}\""
    end

    # repeat sends by the block until there is an answer that is not sent again. The block gets the
    # seconds that are left, or nil.
    def repeat(broken) # :nodoc:
      ends = @deadline && @clock.now + @deadline
      (1..).each do |tries|
        pause = [@backoff * 2**(tries - 1), @max_backoff].min * rand(0.5..1.0)
        answer = failed = nil
        begin
          answer = yield(ends && ends - @clock.now)
          after = retry_after(answer) or return answer
          return answer if after > @max_backoff

          pause = [pause, after + rand * pause / 2].max
        rescue *broken => e
          failed = e
          raise if e.is_a?(OpenSSL::SSL::SSLError) && e.message.match?(/certificate|hostname/)
        end
        if tries >= @max_tries || (ends && @clock.now + pause > ends)
          return answer if answer

          raise failed
        end
        @clock.sleep(pause)
      end
    end

    # whole raises EOFError if an answer was cut.
    def self.whole(answer, body) # :nodoc:
      length = answer["Content-Length"]
      cut = length && body && answer["Content-Encoding"].nil? && body.bytesize < length.to_i
      cut ? raise(EOFError, "dibs: the answer is cut") : answer
    end

    private

    # read_body reads a body that cannot be sent again, such as that of a pipe.
    def read_body(request)
      request.body_stream&.rewind
    rescue SystemCallError
      request.body = request.body_stream.read
    end

    def open(uri, left)
      http = Net::HTTP.new(uri.hostname, uri.port)
      http.use_ssl = uri.scheme == "https"
      http.open_timeout = http.read_timeout = http.write_timeout = [60, left].compact.min.clamp(0.001, 60)
      http.start { yield http }
    end

    def exchange(http, request)
      http.max_retries = 0 # the tries are counted here
      answer = http.request(request)
      Sender.whole(answer, request.method == "HEAD" ? nil : answer.body)
    end

    # retry_after returns the seconds that an answer asks for before the next try, or nil. A date counts
    # by the server's clock.
    def retry_after(answer)
      status = (answer.respond_to?(:code) ? answer.code : answer.status).to_i
      return if answer["Idempotent-Replayed"] == "true" || ![409, 429, 503].include?(status)

      field = answer["Retry-After"].to_s.strip
      return field.to_i if field.match?(/\A\d+\z/)

      date = time(field) or return
      [date - (time(answer["Date"].to_s) || Time.now), 0].max
    end

    def time(text)
      Time.httpdate(text)
    rescue ArgumentError
      nil
    end
  end
end
