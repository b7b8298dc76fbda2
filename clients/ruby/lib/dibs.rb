# frozen_string_literal: true

require "digest"
require "fiber"
require "json"
require "net/http"
require "openssl"
require "securerandom"
require "socket"
require "uri"

# Dibs calls dibs on a key: one caller runs, and all others wait their turn, do something else,
# or get the same answer. It is a client of `dibs serve`, with the standard library only.
#
#   keys = Dibs.connect                      # DIBS_SERVER, or unix:/run/dibs/dibs.sock
#   keys.lock("invoice 42", wait: 30) do |lease|
#     lease.check                            # raises Dibs::Lost
#   end
#   receipt = keys.once("order-17", keep: "24h") { charge }
#
# Durations are seconds, a text such as "1h30m", or an ActiveSupport::Duration.
module Dibs
  VERSION = "0.0.0"

  # Error is the class of all errors of this library, except ArgumentError.
  class Error < StandardError
    # key is the key of the call, or nil. The message has its digest only, because messages end
    # up in logs.
    attr_reader :key

    attr_accessor :unanswered # :nodoc: when the call was sent, if no server said what became of it

    def initialize(message, key: nil)
      super(message)
      @key = key
    end
  end

  # Held: another caller holds the key or comes before this one. It is an answer: the caller
  # neither holds the key nor has a place in its queue.
  class Held < Error
    # left is the seconds until the first lease of the key expires unless it is renewed.
    # ahead is how many places at most come first. waited is how long the caller waited, in
    # seconds.
    attr_reader :left, :ahead, :waited

    def initialize(message, left: 0.0, ahead: 0, waited: 0.0, **rest)
      super(message, **rest)
      @left, @ahead, @waited = left, ahead, waited
    end
  end

  # Lost: the lease expired or was taken away, or the call that ends it was not answered. So another
  # caller may hold the key.
  class Lost < Error; end

  # Done: a record answers the claim (acquire with max_age).
  class Done < Error
    # record is what the holder left, as bytes. age is its age in seconds.
    attr_reader :record, :age

    def initialize(message, record:, age:, **rest)
      super(message, **rest)
      @record, @age = record, age
    end
  end

  # Mismatch: the key is in use, or was used, with another fingerprint.
  class Mismatch < Error; end

  # Unknown: an earlier attempt with at_most_once ended without an outcome. An operator must
  # resolve it.
  class Unknown < Error
    # id names the attempt whose outcome is unknown.
    attr_reader :id

    def initialize(message, id:, **rest)
      super(message, **rest)
      @id = id
    end
  end

  # Unavailable: no server answered, or the store did not. The call may or may not have
  # happened. A claim is then undone in the background.
  class Unavailable < Error; end

  # Busy: the store was busy with the key. Nothing was done, and asking again may help.
  class Busy < Error; end

  # Full: the store has reached one of its limits. Nothing was done.
  class Full < Error; end

  # TooLarge: the store never takes data of that size. Nothing was done.
  class TooLarge < Full; end

  # Refused: the server refused the whole call, and nothing was done; or what answers at the
  # address is no dibs serve. A server behind it may have done the call. A claim is then undone in
  # the background.
  class Refused < Error; end

  # Unauthorized: the URL has no token, or one that the server does not know.
  class Unauthorized < Refused; end

  # Forbidden: the credential has not the role, or the call names another namespace.
  class Forbidden < Refused; end

  # Overloaded: a bound of the server is reached. Asking again may help.
  class Overloaded < Refused; end

  # Remembered: the block of an earlier call of once failed with an error that it remembers.
  # The message is that of the error.
  class Remembered < Error; end

  # NotKept: the block of once ran in this call, but its result could not be stored. The message
  # says what follows, and cause says why. Later callers get Unrecorded, or run with rerun: true.
  # In a transaction nothing was done, and the next caller runs.
  class NotKept < Error
    # result is what the block returned, or nil if its transaction was rolled back.
    attr_reader :result

    def initialize(message, result:, **rest)
      super(message, **rest)
      @result = result
    end
  end

  # Unrecorded: an earlier call of once ran the block, and its result could not be stored. The
  # block does not run again until an operator gives its result (dibs resolve) or deletes the record
  # (dibs forget).
  class Unrecorded < Error
    # why is why the result could not be stored.
    attr_reader :why

    def initialize(claim, why) # :nodoc:
      super("dibs: an earlier run under the key #{claim.digest} was done, but its result could not be stored (#{why}); " \
            "an operator gives the result with dibs resolve, or lets it run again with dibs forget", key: claim.key)
      @why = why
    end
  end

  # WrongTransaction: the connection is not in the transaction that the lease is to end with, or
  # that transaction was not committed. Nothing was settled.
  class WrongTransaction < Error; end

  # Closed: the client was closed.
  class Closed < Error; end

  TTL = 30.0            # the default TTL of a lease, in seconds
  MIN_TTL = 0.01        # the shortest TTL
  RETENTION = 86_400.0  # the default of keep
  PLACE = 7 * 86_400.0  # the default TTL of a reserved place
  PLACE_TTL = 10.0      # how long a waiter's place outlasts its last question
  POLL = 20.0           # the longest call that waits
  TIMEOUT = 5.0         # the default timeout of a call
  KEEP_PATIENCE = 10.0  # how long what was waited or worked for is asked again
  SILENCE = 300.0       # how long after a claim was sent a server that was frozen may carry it out
  ANY_AGE_MS = 9_223_372_036_854 # accepts a record of any age
  MAX_ELEMENTS = 512    # of a call
  IDLE = 30.0           # a connection that was not used for longer is not used again
  # The clock of Linux that runs while the machine is suspended, and elsewhere the monotonic one.
  CLOCK = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC
  private_constant :PLACE_TTL, :POLL, :KEEP_PATIENCE, :SILENCE, :ANY_AGE_MS, :MAX_ELEMENTS, :IDLE, :CLOCK

  class << self
    # connect returns a client of the servers at the URL:
    #
    #   unix:/run/dibs/dibs.sock, http+unix:/run/dibs/dibs.sock    a Unix socket
    #   http://127.0.0.1:7331
    #   https://:TOKEN@dibs.internal                     with a credential
    #   https://:TOKEN@a.internal,b.internal:8443        several servers of one store
    #
    # The default is the variable DIBS_SERVER, or unix:/run/dibs/dibs.sock. It does not connect yet.
    # Keyword arguments are those of Client.new. Make one client for the program: it is safe for
    # threads, and after a fork parent and child may both use it.
    def connect(url = nil, **options)
      named = ENV["DIBS_SERVER"].to_s
      Client.new(url || (named.empty? ? "unix:/run/dibs/dibs.sock" : named), **options)
    end

    # default is the client of Semaphore and ActiveJob: the one that was set, or connect without
    # arguments.
    def default
      @default_lock.synchronize { @default ||= connect }
    end

    # default= sets the client of Semaphore and ActiveJob.
    def default=(client)
      @default_lock.synchronize { @default = client }
    end

    # now is the clock of leases, in seconds.
    def now
      Process.clock_gettime(CLOCK)
    end

    # plain is a message that stands inside another one.
    def plain(message) # :nodoc:
      message.delete_prefix("dibs: ")
    end

    # seconds reads a duration: a number of seconds, or a text such as "24h" or "1h30m".
    def seconds(value, name)
      number =
        case value
        when String
          unless value.match?(/\A(\d+(\.\d+)?(ms|s|m|h))+\z/)
            raise ArgumentError, "dibs: #{name} is #{value.inspect}; a duration is a number of seconds, or a text such as \"90s\" or \"1h30m\""
          end
          value.scan(/([\d.]+)(ms|s|m|h)/).sum { |n, unit| Float(n) * { "ms" => 0.001, "s" => 1, "m" => 60, "h" => 3600 }[unit] }
        when Numeric then value.to_f
        else raise ArgumentError, "dibs: #{name} is #{value.inspect}; it must be a duration, in seconds"
        end
      unless number.finite? && !number.negative?
        raise ArgumentError, "dibs: #{name} is #{value.inspect}; it must be finite and not negative"
      end
      number
    end

    # clients are those that are used and not closed: for forks and the end of the program.
    attr_reader :clients # :nodoc:
  end
  @default_lock = Mutex.new
  @clients = []

  # Address is what a URL says.
  class Address # :nodoc:
    attr_reader :servers, :secret

    Server = Struct.new(:host, :port, :tls, :socket) do
      def to_s
        socket ? "unix:#{socket}" : "#{tls ? "https" : "http"}://#{host}:#{port}"
      end
    end

    def initialize(url)
      raise ArgumentError, "dibs: the URL of a server is a text, not #{url.class}" unless url.is_a?(String)

      url.match?(/\A(http\+)?unix:/) ? socket(url) : hosts(url)
    end

    private

    def socket(url)
      path = url.sub(/\A(http\+)?unix:/, "").sub(%r{\A//(?=/)}, "")
      if !path.start_with?("/") || path.start_with?("//") || path.match?(/[?#]/)
        bad "the URL of a socket is unix: and an absolute path, such as unix:/run/dibs/dibs.sock"
      end
      @servers = [Server.new("localhost", nil, false, path)]
    end

    def hosts(url)
      scheme, rest = url.split("://", 2)
      bad "it must begin with https://, http:// or unix:" unless rest && %w[http https].include?(scheme)
      user, at, list = rest.rpartition("@")
      unless at.empty?
        unless user.start_with?(":") && user.size > 1
          bad "the token stands in the password's place and there is no user, as in https://:TOKEN@HOST"
        end
        bad "the token has a % that is no escape" if user.match?(/%(?!\h\h)/)
        @secret = URI.decode_www_form_component(user[1..].gsub("+", "%2B"))
      end
      list = list.delete_suffix("/")
      bad "there is a path or a parameter after the host; the URL has neither" if list.match?(%r{[/?#]})
      @servers = list.split(",", -1).map { |host| server(scheme, host) }
      bad "it has no host" if @servers.empty?
    end

    def server(scheme, text)
      host, port = text.match(/\A(\[[\h:.]+\]|[^:\[\]@\s]+)(?::(\d+))?\z/)&.captures
      number = (port || (scheme == "https" ? 443 : 80)).to_i
      bad "a host is none: write HOST or HOST:PORT, and an @ after a token" unless host && number.between?(1, 65_535)
      Server.new(host.delete("[]"), number, scheme == "https", nil)
    end

    def bad(why)
      raise ArgumentError, "dibs: not the URL of a server: #{why}" # without the URL, which may have the token
    end
  end

  # Bounded is a socket whose reads and writes end at one moment, even if a little arrives again and
  # again until then.
  class Bounded # :nodoc:
    attr_accessor :ends
    attr_reader :raw # the socket of the system

    def initialize(socket, ends)
      @socket, @raw, @ends = socket, socket.to_io, ends
    end

    def read_nonblock(...)
      left.positive? ? @socket.read_nonblock(...) : raise(Net::ReadTimeout.new(self))
    end

    def write_nonblock(...)
      left.positive? ? @socket.write_nonblock(...) : raise(Net::WriteTimeout.new(self))
    end

    def wait_readable(limit)
      left.positive? && @raw.wait_readable([limit, left].compact.min)
    end

    def wait_writable(limit)
      left.positive? && @raw.wait_writable([limit, left].compact.min)
    end

    # to_io is what Net::BufferedIO waits for.
    def to_io
      self
    end

    # eof? is asked of a kept connection that can be read before a call: it is not used again.
    def eof?
      true
    end

    def close
      @socket.close
    end

    def closed?
      @socket.closed?
    end

    def inspect
      @raw.inspect
    end

    private

    def left
      @ends - Dibs.now
    end
  end

  # Connection is one HTTP connection. It connects by itself, because the timeouts of Net::HTTP
  # bound each address of a name, each read and each write, and not the call.
  class Connection < Net::HTTP # :nodoc:
    attr_accessor :server, :used

    def self.to(server)
      http = new(server.host, server.port, nil) # no proxy, which would see the token
      http.server = server
      http.use_ssl = true if server.tls
      http.keep_alive_timeout = 2 * IDLE
      http.max_retries = 0
      http
    end

    # ends= is when connecting, or the call that is under way, ends.
    def ends=(moment)
      @ends = moment
      @socket.io.ends = moment if @socket
    end

    # stale? reports whether the connection was not used for long, or was closed by the server. Then
    # nothing is sent over it.
    def stale?
      Dibs.now - @used > IDLE || @socket.nil? || !IO.select([@socket.io.raw], nil, nil, 0).nil?
    rescue IOError
      true
    end

    # cut ends the call that another thread makes.
    def cut
      @socket&.io&.raw&.shutdown
    rescue IOError, SystemCallError
      nil
    end

    # abandon closes the socket and says nothing to the server, because the process that forked
    # this one uses the connection.
    def abandon
      @socket&.io&.raw&.close
    rescue IOError
      nil
    end

    private

    def connect
      socket = server.socket ? unix : tcp
      secured = server.tls ? secure(socket) : socket
      @socket = Net::BufferedIO.new(Bounded.new(secured, @ends), read_timeout: nil, write_timeout: nil,
                                    continue_timeout: nil, debug_output: nil)
      @last_communicated = nil
      on_connect
    ensure
      socket&.close unless @socket
    end

    # left is how long connecting may take.
    def left
      left = @ends - Dibs.now
      left.positive? ? left : raise(Net::OpenTimeout, "no connection in time")
    end

    def unix
      socket = Socket.new(:UNIX, :STREAM)
      begin
        socket.connect_nonblock(Addrinfo.unix(server.socket))
      rescue Errno::EAGAIN # the server does not accept the connections that there are
        sleep([0.01, left].min)
        retry
      end
      connected = socket
    ensure
      socket&.close unless connected
    end

    # tcp shares the time among the addresses that are left.
    def tcp
      list = addresses
      list.each_with_index do |address, i|
        socket = address.connect(timeout: left / (list.size - i))
        socket.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1)
        return socket
      rescue SystemCallError
        raise if i == list.size - 1
      end
    end

    # addresses resolves the name in a thread of its own, because nothing interrupts the resolver.
    def addresses
      resolve(Socket::AI_NUMERICHOST)
    rescue SocketError
      # A thread begins with the mask of the one that starts it, and this one must not delay the exit.
      resolver = Thread.new { Thread.handle_interrupt(Object => :immediate) { resolve(0) } }
      resolver.report_on_exception = false
      resolver.join(left) ? resolver.value : raise(Net::OpenTimeout, "the name is not resolved in time")
    end

    def resolve(flags)
      Addrinfo.getaddrinfo(server.host, server.port, nil, :STREAM, nil, flags)
    end

    # secure verifies the certificate and its name.
    def secure(socket)
      context = OpenSSL::SSL::SSLContext.new
      context.set_params
      secured = OpenSSL::SSL::SSLSocket.new(socket, context)
      secured.sync_close = true
      secured.hostname = server.host unless server.host.match?(/\A[\d.]+\z|:/) # an address is not a name
      until (state = secured.connect_nonblock(exception: false)).equal?(secured)
        left
        state == :wait_readable ? socket.wait_readable(left) : socket.wait_writable(left)
      end
      secured.post_connection_check(server.host)
      secured
    end
  end

  # Local is what a client has in one process: connections and threads.
  class Local # :nodoc:
    attr_reader :pid, :renewer, :undoer

    def initialize(address, timeout)
      @address, @timeout = address, timeout
      @pid = Process.pid
      @lock = Mutex.new
      @idle = []
      @all = {}
      @polls = {} # the connections of calls that wait
      @waits = 0  # callers that wait for a key
      @left = ConditionVariable.new
      @current = 0
      @renewer = Renewer.new(self, timeout)
      @undoer = Undoer.new(self, timeout)
    end

    # call makes one call and returns the answers, when it was sent, and when it was sent before and
    # not answered, so that it may have been done then, or nil. If a server is away it asks the next
    # one, each once, and shares the time among them. timeout bounds all of it. wait is how long the
    # server may take longer on purpose. Such a call asks one server only, because its caller asks
    # again with less time to wait.
    def call(verb, body, size, wait: 0.0, timeout: @timeout)
      ends = Dibs.now + timeout
      away = silent = nil
      count = wait.positive? ? 1 : @address.servers.size
      count.times do |i|
        first = @current
        server = @address.servers[first % @address.servers.size]
        left = ends - Dibs.now
        break if left <= 0
        begin
          answers, sent, again = ask(server, verb, body, size, wait, left / (count - i))
          return answers, sent, again || silent
        rescue Error => e
          silent = e.unanswered ||= silent
          raise unless e.is_a?(Unavailable)

          away = e
          @lock.synchronize { @current = first + 1 if @current == first }
        end
      end
      raise away || Unavailable.new("dibs: #{verb}: no server answered in time")
    end

    # wait_begins and wait_ends are called around the wait of a caller.
    def wait_begins
      @lock.synchronize { @waits += 1 }
    end

    def wait_ends
      @lock.synchronize do
        @waits -= 1
        @left.broadcast
      end
    end

    # end_waits ends the calls that wait, and then waits for their callers, for so many seconds.
    def end_waits(limit)
      ends = Dibs.now + limit
      @lock.synchronize do
        @closing = true
        @polls.each_key(&:cut)
        until @waits.zero? || (left = ends - Dibs.now) <= 0
          @left.wait(@lock, left)
        end
      end
    end

    # abandon closes the sockets that the process has from the one that forked it.
    def abandon
      @all.each_key(&:abandon)
    end

    def close
      idle = @lock.synchronize { @idle.slice!(0..) }
      idle.each { |c| drop(c) }
    end

    private

    def ask(server, verb, body, size, wait, timeout)
      body = body.merge(timeout_ms: [((wait + timeout) * 1000).ceil, 1].max) if verb == "claim"
      request = Net::HTTP::Post.new("/v1/#{verb}", "Content-Type" => "application/json", "Accept-Encoding" => "identity")
      request["Authorization"] = "Bearer #{@address.secret}" if @address.secret
      request.body = JSON.generate(body)
      response, sent, again = post(server, request, wait, timeout)
      [read(server, verb, response, size, sent), sent, again]
    rescue Error => e
      e.unanswered ||= again
      raise
    end

    # post sends a request. A kept connection may have been closed by the server meanwhile, so
    # then a new one is used; every call may be repeated. Whatever else ends the call closes its
    # connection, from which the server sees that nobody listens any more.
    def post(server, request, wait, timeout)
      ends = Dibs.now + timeout
      connection = checkout(server)
      again = sent = nil
      begin
        kept = connection.used
        connection.ends = ends
        @lock.synchronize { @polls[connection] = true } if wait.positive?
        connection.start unless connection.started?
        raise Unavailable, "dibs: the client is closed" if wait.positive? && @closing

        connection.ends = ends + wait
        sent = Dibs.now
        response = connection.request(request)
        connection.used = Dibs.now
        whole = true
        [response, sent, again]
      rescue EOFError, Errno::ECONNRESET, Errno::EPIPE, Errno::ECONNABORTED => e
        drop(connection)
        raise silent(Unavailable.new("dibs: #{server}: #{e.message}"), sent) unless kept

        connection = create(server)
        again = sent
        retry
      rescue OpenSSL::SSL::SSLError => e
        kind = e.message.match?(/certificate|hostname/) ? Refused : Unavailable
        raise silent(kind.new("dibs: #{server}: #{e.message}"), sent)
      rescue SystemCallError, SocketError, IOError,
             Net::OpenTimeout, Net::ReadTimeout, Net::WriteTimeout, # and no other Timeout::Error, which is the caller's
             Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError, Net::ProtocolError => e
        cure = "; is dibs serve running there?" if e.is_a?(Errno::ENOENT) || e.is_a?(Errno::ECONNREFUSED)
        raise silent(Unavailable.new("dibs: #{server}: #{e.message}#{cure}"), sent)
      ensure
        whole ? checkin(connection) : drop(connection)
      end
    end

    # silent is the error of a call that no server answered. sent is when it was sent, or nil.
    def silent(error, sent)
      error.tap { error.unanswered = sent }
    end

    def checkout(server)
      loop do
        kept = @lock.synchronize do
          at = @idle.rindex { |c| c.server == server }
          at && @idle.delete_at(at)
        end
        return kept || create(server) unless kept&.stale?

        drop(kept)
      end
    end

    def create(server)
      connection = Connection.to(server)
      @lock.synchronize { @all[connection] = true }
      connection
    end

    def checkin(connection)
      return drop(connection) unless connection.started?

      @lock.synchronize do
        @polls.delete(connection)
        @idle << connection
      end
    end

    def drop(connection)
      @lock.synchronize { [@polls, @all].each { |set| set.delete(connection) } }
      connection.finish if connection.started?
    rescue IOError, SystemCallError
      nil
    end

    # read reads a response. Only dibs serve itself knows that nothing was done: what another program
    # answers says nothing of a server behind it.
    def read(server, verb, response, size, sent)
      return answers(server, response, size, sent) if response.code == "200"

      problem = response.content_type == "application/problem+json" ? parse(response.body) : nil
      problem = nil unless problem.is_a?(Hash)
      text = problem && "#{problem["title"]} (#{response.code}): #{problem["detail"]}"
      if response.code.to_i >= 500
        stopping = problem && problem["type"].to_s.end_with?("#stopping")
        raise silent(Unavailable.new("dibs: #{verb}: #{text || "#{server} answers with #{response.code}"}"), stopping ? nil : sent)
      end
      raise stranger(server, "with #{response.code}", sent) unless text

      kind = { "401" => Unauthorized, "403" => Forbidden, "429" => Overloaded }.fetch(response.code, Refused)
      raise kind, "dibs: #{verb}: #{text}"
    end

    def answers(server, response, size, sent)
      body = response.content_type == "application/json" ? parse(response.body) : nil
      list = body.is_a?(Hash) ? body["answers"] : nil
      return list if list.is_a?(Array) && list.size == size && list.all?(Hash)

      raise stranger(server, "with something else", sent)
    end

    def stranger(server, how, sent)
      silent(Refused.new("dibs: what answers at #{server} #{how} is no dibs serve"), sent)
    end

    def parse(text)
      JSON.parse(text)
    rescue JSON::ParserError
      nil
    end
  end

  # Renewer renews the leases of a process: one thread, and one call for all that are due.
  class Renewer # :nodoc:
    def initialize(local, timeout)
      @local, @timeout = local, timeout
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @leases = {}
    end

    def add(lease)
      @lock.synchronize do
        @leases[lease] = true
        unless @thread&.alive?
          # A thread begins with the mask of the one that starts it.
          @thread = Thread.new { Thread.handle_interrupt(Object => :immediate) { run } }
          @thread.name = "dibs renewer"
        end
        @changed.signal
      end
    end

    def remove(lease)
      @lock.synchronize { @leases.delete(lease) }
    end

    def stop
      @lock.synchronize { @leases.clear }
      @thread&.kill
    end

    private

    def run
      loop do
        due, patience = @lock.synchronize { await }
        due.each_slice(MAX_ELEMENTS) { |leases| renew(leases, patience) }
      end
    end

    # await waits until leases are due, and returns those that are due now or soon.
    def await
      loop do
        now = Dibs.now
        @leases.delete_if { |lease, _| lease.overdue?(now) }
        first = @leases.each_key.map(&:due).min
        if first && first <= now
          due = @leases.keys.select { |lease| lease.due <= now + lease.ttl / 15 }
          return due, [@timeout, @leases.each_key.map { |lease| lease.ttl / 3 }.min].min
        end
        @changed.wait(@lock, first && first - now)
      end
    end

    def renew(leases, patience)
      body = { renewals: leases.map { |l| l.named.merge(ttl_ms: (l.ttl * 1000).ceil) } }
      answers, sent = @local.call("renew", body, leases.size, timeout: patience)
      leases.zip(answers) do |lease, answer|
        case answer.dig("error", "type")
        when nil then lease.trust(sent)
        when "lost" then remove(lease) if lease.lose
        else lease.later
        end
      end
    rescue StandardError
      leases.each(&:later) # it is tried again until the lease is no longer trusted
    end
  end

  # Undoer settles in the background, by token, what no caller uses any more.
  #
  # It also remembers the silent claims: those that were sent to a server and not answered. If that
  # server was frozen, it may carry the claim out when it wakes. So when the token of a silent claim
  # has been settled, it is undone again and again, until no server carries the claim out any more.
  class Undoer # :nodoc:
    # Entry is what is settled when it is due. again is the pause after it if it is one of the
    # repeated undos, and nil if it is the first settlement of its token.
    Entry = Struct.new(:claim, :settlement, :due, :expires, :again) do
      def wire
        claim.named.merge(settlement)
      end
    end

    def initialize(local, timeout)
      @local, @timeout = local, timeout
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @entries = []
      @under_way = []
      @silent = {} # when the last silent claim of a token was sent
      @pending = 0 # first settlements that were not answered
    end

    # claims says that a claim is sent, and returns when the last silent one of its token was sent,
    # or nil. The claim is silent until heard says otherwise. The token is not undone meanwhile.
    def claims(claim)
      @lock.synchronize do
        @entries.reject! { |e| e.again && e.claim.token == claim.token }
        @changed.wait(@lock) while @under_way.any? { |e| e.again && e.claim.token == claim.token }
        now = Dibs.now
        @silent.delete_if { |_, sent| now >= sent + SILENCE } if @silent.size >= 1000
        before = @silent[claim.token]
        @silent[claim.token] = now
        before
      end
    end

    # heard says that a claim was answered, or not sent. silent is when the last silent one was sent,
    # or nil.
    def heard(claim, silent)
      @lock.synchronize { silent ? @silent[claim.token] = silent : @silent.delete(claim.token) }
    end

    # settled says that a server has answered the settlement of a claim.
    def settled(claim, outcome)
      @lock.synchronize { ended(claim, outcome) }
    end

    # settle settles in the background: with an outcome, or with a whole settlement.
    def settle(claim, settlement)
      settlement = { outcome: settlement } unless settlement.is_a?(Hash)
      now = Dibs.now
      @lock.synchronize do
        expires = [now + [claim.ttl, claim.place_ttl].max + @timeout, (@silent[claim.token] || 0) + SILENCE].max
        @pending += 1
        add(Entry.new(claim, settlement, now, expires))
      end
      # A program that ends kills its threads, this one and the undoer's: then it is done here.
      pass(2.0) if Thread.current.status == "aborting"
    end

    # flush waits until everything was settled once, or for so many seconds.
    def flush(limit)
      ends = Dibs.now + limit
      @lock.synchronize do
        while @pending.positive? && (left = ends - Dibs.now).positive? && @thread&.alive?
          @changed.wait(@lock, left)
        end
        @pending
      end
    end

    def stop
      @thread&.kill
    end

    private

    def add(entry)
      @entries << entry
      begin
        unless @thread&.alive? && @thread.status != "aborting"
          @thread = Thread.new { Thread.handle_interrupt(Object => :never) { run } }
          @thread.name = "dibs undoer"
        end
      rescue ThreadError
        nil # the program ends
      end
      @changed.broadcast
    end

    # ended undoes what silent claims of a token may still get. A release and a record end the place
    # that was redeemed, too.
    def ended(claim, outcome)
      again(claim, 1.0)
      again(claim.place, 1.0) if claim.from && %w[release keep].include?(outcome)
    end

    # again undoes a token after a pause if a claim of it was silent.
    def again(claim, pause)
      sent = @silent[claim.token] or return
      now = Dibs.now
      return @silent.delete(claim.token) if now >= sent + SILENCE

      due = [now + pause, sent + SILENCE].min
      add(Entry.new(claim, { outcome: "undo" }, due, due, [pause * 2, 15.0].min))
    end

    def run
      pause = 0.02
      loop do
        # Only between two calls may the thread be killed.
        Thread.handle_interrupt(Object => :immediate) do
          sleep(pause * rand(0.5..1.0)) if pause > 0.02
          await
        end
        pause = pass(@timeout) ? 0.02 : [pause * 2, 1.0].min
      end
    end

    def await
      @lock.synchronize do
        until (first = @entries.map(&:due).min) && first <= Dibs.now
          @changed.wait(@lock, first && first - Dibs.now)
        end
      end
    end

    # pass settles what is due in one call, and reports whether the servers answered.
    def pass(timeout)
      due = @lock.synchronize do
        due, @entries = @entries.partition { |e| e.due <= Dibs.now }
        @entries.concat(due.slice!(MAX_ELEMENTS..) || [])
        @under_way += due
        due
      end
      return true if due.empty?

      answers, = @local.call("settle", { settlements: due.map(&:wire) }, due.size, timeout: timeout)
      done = due.zip(answers).reject { |_, a| %w[busy full].include?(a.dig("error", "type")) }.map(&:first)
      true
    rescue StandardError
      false
    ensure
      finish(due, done || [])
    end

    def finish(due, done)
      return if due.nil?

      now = Dibs.now
      @lock.synchronize do
        due.each do |entry|
          @under_way.delete_if { |e| e.equal?(entry) }
          if entry.again
            again(entry.claim, entry.again)
          elsif now >= entry.expires || done.any? { |e| e.equal?(entry) }
            @pending -= 1
            ended(entry.claim, entry.settlement[:outcome])
          else
            entry.due = now + 0.05
            @entries << entry
          end
        end
        @changed.broadcast
      end
    end
  end

  # Claim is what a caller asks for, and what its token may have at the store.
  class Claim # :nodoc:
    attr_reader :key, :namespace, :token, :ttl, :place_ttl, :margin, :longest, :permits, :weight, :wait, :from
    attr_accessor :open # the token may have a lease or a place

    def initialize(key, options)
      @key, @options = key, options
      @namespace = options[:namespace]
      @token = options[:token] || SecureRandom.hex(16)
      @from, @ttl, @wait, @place_ttl = options[:from], options[:ttl], options[:wait], options[:place_ttl] || PLACE_TTL
      @permits, @weight = options[:permits] || 1, options[:weight] || 1
      @margin = [options[:margin] || 0.0, @ttl / 50 + 0.001].max
      @longest = options[:longest]
    end

    def digest
      Digest::SHA256.hexdigest("#{@namespace}\0".b + @key.b)[0, 12]
    end

    # named names the key and the token, as each element of a call does.
    def named
      text = @key.dup.force_encoding(Encoding::UTF_8)
      element = text.valid_encoding? ? { key: text } : { key_b64: [@key].pack("m0") }
      element[:namespace] = @namespace unless @namespace.empty?
      element[:token] = @token
      element
    end

    # place is the claim of the reserved place that this one redeems, or nil.
    def place
      @from && Claim.new(@key, **@options, token: @from, from: nil)
    end

    # owner is what people read of it, as the stores keep it.
    def owner
      o = @options[:owner]
      "#{o[:host].tr(" ", "_")} #{o[:pid]} #{o[:label]}".b[0, 255]
    end

    # wire is the element of a claim.
    def wire(mode)
      o = @options
      element = named.merge(mode: mode, ttl_ms: (@ttl * 1000).ceil, owner: o[:owner])
      element[:place_ttl_ms] = (place_ttl * 1000).ceil unless mode == "try"
      element[:permits] = @permits if @permits != 1
      element[:weight] = @weight if @weight != 1
      element[:from] = @from if @from
      element[:grace_ms] = (o[:grace] * 1000).ceil if o[:grace]
      element[:fingerprint] = o[:fingerprint] if o[:fingerprint]
      element[:max_age_ms] = o[:max_age] == :any ? ANY_AGE_MS : (o[:max_age] * 1000).ceil if o[:max_age]
      element[:at_most_once] = true if o[:at_most_once]
      element
    end
  end

  # Ticket is a place in a key's queue as text: the same text as in the Go library.
  module Ticket # :nodoc:
    module_function

    def write(claim)
      ["dibs1", [[claim.token].pack("H*")], [claim.namespace], [claim.key]].flatten
        .each_with_index.map { |part, i| i.zero? ? part : [part].pack("m0").tr("+/", "-_").delete("=") }.join(".")
    end

    # read returns the token, the namespace and the key.
    def read(text)
      parts = text.is_a?(String) ? text.split(".", -1) : []
      bad unless parts.size == 4 && parts[0] == "dibs1"
      token, namespace, key = parts[1..].map do |part|
        bad unless part.match?(/\A[\w-]*\z/)
        bytes = part.tr("-_", "+/").ljust((part.size + 3) / 4 * 4, "=").unpack1("m0")
        bad unless [bytes].pack("m0").tr("+/", "-_").delete("=") == part
        bytes
      end
      bad unless token.bytesize == 16
      [token.unpack1("H*"), namespace.force_encoding(Encoding::UTF_8), key.force_encoding(Encoding::UTF_8)]
    rescue ArgumentError
      bad
    end

    def bad
      raise ArgumentError, "dibs: not a ticket of Dibs::Client#reserve" # without the text, which is a secret
    end
  end

  # Lease is the right to a key until it is settled or lost. It is renewed in the background. Its
  # methods are safe for threads. A process that was forked does not own it.
  class Lease
    # ttl is the TTL in seconds. attempt is 1 plus the number of leases in a row that were
    # abandoned before this one. progress is what those saved last, or nil.
    attr_reader :ttl, :attempt, :progress

    def initialize(client, local, claim, answer, sent, renewed: true) # :nodoc:
      @client, @local, @claim = client, local, claim
      @ttl = claim.ttl
      @fence, @attempt = Integer(answer.fetch("fence"), 10), answer["attempt"] || 1
      @progress = answer["progress"]&.unpack1("m0")
      @namespace = answer["namespace"] || ""
      @limit = claim.longest && sent + claim.longest
      @guard = Mutex.new    # of the fields below
      @settling = Mutex.new # held while a settlement is under way
      @trusted = -Float::INFINITY
      @renewed = renewed
      trust(sent)
      local.renewer.add(self) if renewed
    end

    # key is the key that is held.
    def key
      @claim.key
    end

    # check returns the lease, and raises Lost if it is not held any more. It looks at the clock,
    # so it also knows when the process was stopped for longer than the lease.
    def check
      raise lost unless held?

      self
    end

    # held? reports whether the lease is held and trusted.
    def held?
      @unanswered.nil? && live?
    end

    # fence is the fencing token: it rises with every grant of the key. A resource that remembers
    # the highest fence and refuses lower ones is safe from a holder that was stopped for longer
    # than its lease. It raises Lost like check.
    def fence
      check
      @fence
    end

    # left is the seconds for which the lease can still be trusted unless it is renewed.
    def left
      held? ? [@trusted - Dibs.now, 0.0].max : 0.0
    end

    # id is the public name of this attempt, which operators see.
    def id
      sum = Digest::SHA256.digest("dibs claim id\0".b + [@claim.token].pack("H*"))[0, 10]
      sum.unpack1("B*").scan(/.{5}/).map { |b| "abcdefghijklmnopqrstuvwxyz234567"[b.to_i(2)] }.join
    end

    # save keeps progress (bytes, at most 1 MiB) with the lease and renews it. The next holder
    # gets it if this one does not settle. It raises Lost, Unavailable or another Error.
    def save(progress)
      check
      element = @claim.named.merge(ttl_ms: (@ttl * 1000).ceil, progress: [progress].pack("m0"))
      answers, sent = @local.call("renew", { renewals: [element] }, 1, timeout: [@client.timeout, left].min)
      type, detail = answers[0]["error"]&.values_at("type", "detail")
      case type
      when nil then trust(sent)
      when "lost"
        lose
        raise lost
      else raise Client.error(type, detail, @claim)
      end
      nil
    end

    # release ends the lease and leaves nothing behind. It does nothing if the lease was settled
    # before. It raises Lost when the lease was lost. It raises Unavailable, Busy or another Error
    # when the server did not do it; the lease is then released in the background.
    def release
      conclude({ outcome: "release" }, @client.timeout, background: true)
    end

    # complete ends the lease and leaves data (bytes) behind as the key's record, for keep
    # (default: 24 hours). It raises Lost, and then nothing is written. After Busy or Full the lease
    # is still held: call complete again, or release. After Unavailable the record may be written, so
    # the lease is not trusted any more: call complete again, and the store decides. If the call is
    # interrupted, by Timeout or Thread#kill, the record is written in the background.
    def complete(data, keep: RETENTION)
      conclude(record(data, keep), KEEP_PATIENCE)
    end

    # complete_in is complete in a transaction of the application, in the PostgreSQL database of the
    # store: what the transaction writes and the record are both committed, or neither is. Call it
    # as the last statement of the transaction. connection is a PG::Connection, or a class or
    # connection of ActiveRecord. With data: nil it leaves no record, as release.
    #
    # The lease has ended when the transaction commits. If it is rolled back, the lease is still
    # held. The end of the block of lock settles it in both cases; a lease of acquire needs release
    # after the transaction, which does nothing if it committed.
    #
    # It raises Lost, WrongTransaction, Refused (the database has no such store), Forbidden (the
    # role may not call the function) and the errors of PG. Let them roll the transaction back.
    def complete_in(connection, data, keep: RETENTION)
      retention = Dibs.seconds(keep, "keep")
      raise ArgumentError, "dibs: keep is #{keep.inspect}; it must be at least 1 ms" if retention < 0.001

      settle_in(Postgres.new(@client, connection), data, retention, "caller")
    end

    # abandon ends the lease as if its holder had crashed: the next holder learns of it.
    def abandon
      conclude({ outcome: "abandon" }, @client.timeout)
    end

    # undo ends the lease as if it had not been granted, for a holder that has done nothing. A
    # reserved place can then be redeemed again.
    def undo
      conclude({ outcome: "undo" }, @client.timeout)
    end

    # inspect shows no token.
    def inspect
      "#<Dibs::Lease #{@claim.digest} #{held? ? "held" : "ended"}>"
    end

    # For the client and its renewer.

    attr_reader :due, :claim, :client # :nodoc:

    # live? reports whether the lease may hold the key.
    def live? # :nodoc:
      !@settled && !@lost && Process.pid == @local.pid && !overdue?(Dibs.now)
    end

    def named # :nodoc:
      @claim.named
    end

    # trust extends the trust: the server confirmed the lease in answer to what was sent then.
    def trust(sent) # :nodoc:
      @guard.synchronize do
        @trusted = [[@trusted, sent + @ttl - @claim.margin].max, @limit || Float::INFINITY].min
        @due = sent + @ttl / 3
      end
    end

    # later says when a renewal that failed is sent again.
    def later # :nodoc:
      @guard.synchronize { @due = Dibs.now + [@ttl / 15, 0.001].max }
    end

    def overdue?(now) # :nodoc:
      now >= @trusted
    end

    # lose notes that the server does not know the lease. While a settlement is under way, or if
    # one may have been done, that says nothing, and lose returns false.
    def lose # :nodoc:
      return later && false if @unanswered || @in_transaction || !@settling.try_lock

      begin
        @lost = true unless @settled
        true
      ensure
        @settling.unlock
      end
    end

    # undo_later undoes the lease in the background.
    def undo_later # :nodoc:
      hand_over({ outcome: "undo" })
    end

    # complete_later is complete in the background.
    def complete_later(data, keep) # :nodoc:
      hand_over(record(data, keep))
    end

    # settle_in settles with the last statement of a transaction. Until it commits the lease is held,
    # and then a renewal finds none, which is no loss.
    def settle_in(database, data, retention, proof) # :nodoc:
      raise ArgumentError, "dibs: a key with more than one permit cannot have a record" if data && @claim.permits > 1

      check
      @in_transaction = true
      database.settle(@claim, @namespace, data, retention, proof)
    rescue Lost
      @lost = true
      @local.renewer.remove(self)
      raise
    end

    # committed notes that the transaction in which the lease was settled is committed.
    def committed # :nodoc:
      @settled = true
      @local.renewer.remove(self)
      @local.undoer.settled(@claim, "keep")
    end

    # find_out finds out whether the transaction was committed that settled the lease with this
    # record, if its answer did not arrive. A lease that can be released was not settled, and cannot
    # be any more. The store accepts a record again from the token that has left it.
    def find_out(data, retention) # :nodoc:
      done = !ask_settle({ outcome: "release" }) &&
             ask_settle({ outcome: "keep", data: [data].pack("m0"), retention_ms: (retention * 1000).ceil })
      committed
      done
    end

    # finish ends the lease of a block, and returns the error if it was lost while its block ran. An
    # abandon or undo that was not answered is made again.
    def finish # :nodoc:
      doubt = @settling.synchronize { @settled ? nil : @unanswered }
      why = doubt ? "may have ended while its block ran: its #{CALLS[doubt]} was sent and not answered" : "was lost while its block ran"
      error = Lost.new("dibs: the lease of the key #{@claim.digest} #{why}", key: key)
      return @settled ? nil : error if Process.pid != @local.pid

      conclude({ outcome: doubt && doubt != "keep" ? doubt : "release" }, @client.timeout, background: true)
      doubt && error
    rescue Lost
      error
    rescue Error
      doubt && error # it is released in the background, and the block must not run again
    end

    private

    # CALLS are the methods that send a settlement, by its outcome.
    CALLS = { "keep" => "complete", "release" => "release", "abandon" => "abandon", "undo" => "undo" }.freeze
    private_constant :CALLS

    def lost
      why = Process.pid == @local.pid ? "" : ": it belongs to the process that forked this one"
      if @settled
        why = ": it was settled"
      elsif @unanswered && !@lost && why.empty?
        call = CALLS[@unanswered]
        why = ", or may be: its #{call} was sent and not answered; call #{call} again, and the store decides"
      end
      Lost.new("dibs: the lease of the key #{@claim.digest} is lost#{why}", key: key)
    end

    # record is the settlement that leaves a record.
    def record(data, keep)
      retention = (Dibs.seconds(keep, "keep") * 1000).ceil
      raise ArgumentError, "dibs: keep is #{keep.inspect}; it must be at least 1 ms" if retention < 1
      raise ArgumentError, "dibs: a key with more than one permit cannot have a record" if @claim.permits > 1

      { outcome: "keep", data: [data].pack("m0"), retention_ms: retention }
    end

    # conclude settles now. A caller that leaves it in any other way than with an answer, such as
    # with the exception of another thread, with throw or because it is killed, does not call
    # again: then the lease is settled in the background. background does that after an error, too.
    def conclude(settlement, patience, background: false)
      over = false
      settle(settlement, patience)
      over = true
      nil
    rescue Error => e
      over = !background || e.is_a?(Lost)
      raise
    ensure
      hand_over(settlement) unless over
    end

    # hand_over settles the lease in the background.
    def hand_over(settlement)
      return if Process.pid != @local.pid

      Thread.handle_interrupt(Object => :never) do
        @settling.synchronize do
          next if @settled

          @settled = true
          @handed = settlement[:outcome]
          @local.renewer.remove(self)
          @local.undoer.settle(@claim, settlement)
        end
      end
    end

    def settle(settlement, patience)
      raise lost if Process.pid != @local.pid

      @settling.synchronize do
        # A record that is being written in the background is written by its caller, too.
        return if @settled && !(@handed == "keep" && settlement[:outcome] == "keep")

        if @lost || (overdue?(Dibs.now) && @unanswered != settlement[:outcome] && !@in_transaction)
          # What the store still has of it is abandoned, as it would be when it expires.
          ended
          @local.undoer.settle(@claim, "abandon")
          raise lost
        end
        send_settlement(@claim.named.merge(settlement), patience)
      end
    end

    # ask_settle reports whether the store accepts a settlement.
    def ask_settle(settlement)
      tries = Tries.new(KEEP_PATIENCE)
      begin
        answers, = @local.call("settle", { settlements: [@claim.named.merge(settlement)] }, 1)
        type, detail = answers[0]["error"]&.values_at("type", "detail")
        raise Client.error(type, detail, @claim) if type && type != "lost"
      rescue Unavailable, Busy, Overloaded
        retry if tries.again?
        raise
      end
      type.nil?
    end

    def send_settlement(element, patience)
      outcome = element[:outcome]
      tries = Tries.new(patience)
      begin
        before, @unanswered = @unanswered, @unanswered || outcome
        again = false
        answers, _, again = @local.call("settle", { settlements: [element] }, 1)
        type, detail = answers[0]["error"]&.values_at("type", "detail")
        raise Client.error(type, detail, @claim) if type && type != "lost"
      rescue Error => e
        @unanswered = before unless again || e.unanswered # nothing was done
        retry if [Unavailable, Busy, Overloaded].any? { |c| c === e } && tries.again? # rubocop:disable Style/CaseEquality
        raise
      end
      @local.undoer.settled(@claim, type ? "lost" : outcome)
      # The same record may be written twice. Any other end that was done before is a loss to the
      # store, and none to the holder.
      if type == "lost" && (outcome == "keep" || !(again || before == outcome || @in_transaction))
        @lost = true
        @local.renewer.remove(self)
        raise lost
      end
      ended
    end

    def ended
      if (overdue?(Dibs.now) && !@in_transaction) || @lost
        @lost = true
      else
        @settled = true
      end
      @local.renewer.remove(self)
      nil
    end
  end

  # Postgres is a connection of the application, and the functions of the store in its database.
  class Postgres # :nodoc:
    IDLE, ACTIVE, IN_TRANSACTION = 0, 1, 2 # of PG::Connection#transaction_status
    SQLSTATE, DETAIL = 67, 68             # of PG::Result#error_field

    def initialize(client, connection)
      @client = client
      @given = connection
      connection = connection.connection if !connection.respond_to?(:exec_params) && connection.respond_to?(:connection)
      connection = connection.raw_connection if connection.respond_to?(:raw_connection)
      unless connection.respond_to?(:exec_params) && connection.respond_to?(:transaction_status)
        raise ArgumentError, "dibs: #{connection.class} is no connection to PostgreSQL; it must be a PG::Connection, or a class or connection of ActiveRecord"
      end
      @connection = connection
    end

    # run runs the block in a transaction of its own. PG and ActiveRecord commit a block that is left
    # with break or throw, and PG one whose thread is killed. Here all of them roll back.
    def run
      if @connection.transaction_status != IDLE
        raise WrongTransaction, "dibs: the connection is in a transaction already; once begins and commits its own, so call it outside, or use complete_in"
      end
      @given.transaction do
        whole = false
        begin
          @connection.exec("SET LOCAL dibs.run = 'on'")
          yield
          whole = true
        rescue Exception # rubocop:disable Lint/RescueException
          whole = true # it is rolled back because of the error
          raise
        ensure
          abort_run unless whole
        end
      end
    end

    def settle(claim, namespace, data, retention, proof)
      if @connection.transaction_status != IN_TRANSACTION
        raise WrongTransaction.new("dibs: the connection is not in a transaction, or a statement of it failed; begin one, and call complete_in as its last statement", key: claim.key)
      end
      answer = call("settle_in", "SELECT %s($1::text, $2::text, $3::text, $4::text::interval, $5::text, 'base64', $6::text), txid_current()",
                    [base64(claim.key), claim.token, data && base64(data), interval(retention), namespace, proof], claim)
      @transaction = answer.getvalue(0, 1)
      nil
    end

    # committed? reports whether the transaction of settle was committed. If a statement failed after
    # settle and its error was swallowed, PostgreSQL answers COMMIT with ROLLBACK, and with no error.
    def committed?
      @connection.exec_params("SELECT txid_status($1::text::bigint)", [@transaction]).getvalue(0, 0) == "committed"
    end

    def reserve(claim, namespace, place_ttl, grace, owner)
      call("reserve_in", "SELECT %s($1::text, $2::text::interval, $3::text::interval, $4::text, $5::text, 'base64')",
           [base64(claim.key), interval(place_ttl), interval(grace || 0), namespace, base64(owner)], claim).getvalue(0, 0)
    end

    private

    # abort_run rolls back. An exception does that, but it would end the killing of a thread.
    def abort_run
      if Thread.current.status != "aborting"
        raise WrongTransaction, "dibs: the block of once was left before its end, so its transaction is rolled back"
      end

      @connection.cancel if @connection.transaction_status == ACTIVE
      @connection.block
      @connection.exec("ROLLBACK")
    rescue WrongTransaction
      raise
    rescue StandardError
      @connection.finish
    end

    def call(function, sql, values, claim)
      name = [@client.schema, "#{@client.prefix}_#{function}"].map { |part| "\"#{part.gsub("\"", "\"\"")}\"" }.join(".")
      @connection.exec_params(format(sql, name), values)
    rescue StandardError => e
      state, detail = e.respond_to?(:result) && e.result ? [e.result.error_field(SQLSTATE), e.result.error_field(DETAIL)] : nil
      case state
      when "DIBS1" then raise Lost.new("dibs: the lease of the key #{claim.digest} is lost: #{detail}", key: claim.key)
      when "DIBS2" then raise WrongTransaction.new("dibs: the block of once ended its transaction and began another one; leave that to once", key: claim.key)
      when "22023", "54000"
        raise TooLarge.new("dibs: the key #{claim.digest}: #{e.message.lines.first&.chomp}", key: claim.key) # of what it passes, only the data has no bound here
      when "42883", "3F000"
        raise Refused.new("dibs: this database has no function #{name} of this version. Name the store's schema: and prefix: when you connect, or run dibs migrate (#{e.message.lines.first&.chomp})", key: claim.key)
      when "42501"
        raise Forbidden.new("dibs: the role may not call #{name}: GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION (#{e.message.lines.first&.chomp})", key: claim.key)
      end
      raise
    end

    def base64(bytes)
      [bytes].pack("m0")
    end

    def interval(seconds)
      "#{(seconds * 1_000_000).ceil} microseconds"
    end
  end

  # Tries paces the tries of one call: pauses double from 20 ms to 1 s, half of each is random.
  class Tries # :nodoc:
    def initialize(patience)
      @ends = Dibs.now + patience
      @pause = 0.01
    end

    # again? waits for the next try, or returns false if that would be too late.
    def again?
      @pause = [@pause * 2, 1.0].min
      pause = @pause * rand(0.5..1.0)
      return false if Dibs.now + pause > @ends

      sleep(pause)
      true
    end
  end

  # Client takes, waits for, renews and settles leases. Make one with Dibs.connect.
  class Client
    # timeout bounds one call, in seconds. namespace is that of the keys. schema and prefix name the
    # store's tables in PostgreSQL.
    attr_reader :timeout, :namespace, :schema, :prefix

    # A client has these defaults: ttl of its leases, timeout of a call, the namespace of its keys
    # (default: the server's or the credential's), and a label that tells operators what the keys
    # are held for. For complete_in, reserve_in and once with in:, schema and prefix are those of the
    # store's URL.
    def initialize(url, ttl: TTL, timeout: TIMEOUT, namespace: "", label: File.basename($PROGRAM_NAME), schema: "public", prefix: "dibs")
      @address = Address.new(url)
      @ttl = self.class.ttl(ttl)
      @timeout = Dibs.seconds(timeout, "timeout")
      raise ArgumentError, "dibs: timeout is 0; it must be more" if @timeout.zero?

      @namespace, @label = namespace, label
      @schema, @prefix = schema, prefix
      @lock = Mutex.new
    end

    # lock runs the block while it holds the key, and returns what the block returns. Callers get
    # the key in the order in which they arrive.
    #
    # wait: how long to wait before it raises Held; 0: not at all. Default: without limit.
    # ttl: of the lease. Default: that of the client, 30 seconds. It is renewed while the block runs.
    # permits, weight: how many permits the key has, and how many the lease takes. Default: 1.
    # fingerprint: the SHA-256, in 64 hexadecimal digits, of what is asked under the key.
    # at_most_once: refuses to run again after a holder that ended without an outcome.
    # margin: how long the lease ends before another caller can get the key.
    # longest: how long the lease may last in all.
    # label: what operators see.
    #
    # Every way out of the block releases the key. If the lease was lost, lock raises Lost when the
    # block ends, unless the block raised an error. A caller that already holds the key in this
    # thread gets Held at once, because its wait would never end. lock also raises Mismatch,
    # Unknown, Unavailable, Busy, Full, Refused and its kinds, and Closed.
    def lock(key, **options, &block)
      raise ArgumentError, "dibs: lock needs a block; acquire returns a lease" unless block

      hold(asked(key, options), &block)
    end

    # acquire takes the key like lock and returns the Lease, which is renewed until it is settled.
    # max_age (seconds, or :any) accepts a record up to that age: acquire then raises Done. With
    # renew: false the lease lasts for its ttl.
    def acquire(key, max_age: nil, renew: true, **options)
      max_age = Dibs.seconds(max_age, "max_age") if max_age && max_age != :any
      claim = asked(key, options, max_age: max_age)
      lease = got = nil
      begin
        Thread.handle_interrupt(Object => :never) { lease = take(claim, renew) }
        got = lease
      ensure
        lease.undo_later if lease && !got # an exception from another thread was waiting
      end
    end

    # once runs the block under the key unless that was done before, and returns its result. All
    # callers get it: those that call while it runs wait, and those that call later get the stored
    # one until keep is over (default: 24 hours), in any process. The result is stored as JSON, so
    # every caller gets what JSON makes of it: keys of hashes are strings.
    #
    # If the block ran and its result could not be stored, because JSON would make something else of
    # it or because it is too large, once raises NotKept. The effect has happened, so the block does
    # not run again: later callers get Unrecorded until keep is over. An operator gives the result
    # (dibs resolve) or lets the next caller run (dibs forget). With rerun: true the next caller runs.
    #
    # max_age: the age up to which a stored result is returned. Default: any.
    # remember: error classes (or a proc) that are stored like a result; later callers get
    # Remembered. Default: none, and the next caller runs.
    #
    # in: a connection as with Lease#complete_in, outside of a transaction. The block then runs in a
    # transaction on it, which commits together with the result. So a crash leaves both or neither,
    # and the block has its effect exactly once. An error rolls back; errors of PG are for the
    # caller, who calls once again after a conflict. So does NotKept, and then the next caller runs.
    #
    # The other arguments and errors are those of lock.
    def once(key, keep: RETENTION, max_age: nil, remember: [], rerun: false, **options, &block)
      raise ArgumentError, "dibs: once needs a block" unless block

      connection = options.delete(:in)
      database = connection && Postgres.new(self, connection)
      retention = Dibs.seconds(keep, "keep")
      raise ArgumentError, "dibs: keep is #{keep.inspect}; it must be at least 1 ms" if retention < 0.001

      max_age = max_age ? Dibs.seconds(max_age, "max_age") : :any
      claim = asked(key, options, max_age: max_age)
      begin
        hold(claim) do |lease|
          next run_once_in(database, lease, retention, [*remember], &block) if database

          run_once(lease, [*remember], ->(result, &record) { keep(lease, retention, rerun, result, &record) }, &block)
        end
      rescue Done => e
        raise unless e.key.equal?(claim.key)

        Outcome.recall(e, claim)
      end
    end

    # reserve takes a place in the key's queue without waiting there, and returns its ticket: a
    # text to keep secret, for redeem in any process. The place lasts for ttl (default: 7 days).
    # Until it is redeemed or has ended, no caller behind it gets the key, but a free key waits for
    # it for at most grace (default: as long as the place lasts).
    def reserve(key, ttl: PLACE, grace: nil, fingerprint: nil, label: nil)
      claim = claim(key, grace: grace, fingerprint: fingerprint, label: label, place_ttl: place_ttl(ttl))
      here = local
      done = false
      begin
        ask_place(claim)
        done = true
        Ticket.write(claim)
      ensure
        here.undoer.settle(claim, "undo") unless done # nobody has its ticket
      end
    end

    # reserve_in is reserve in a transaction of the application: the place exists when it commits. For
    # the connection and its errors see Lease#complete_in.
    def reserve_in(connection, key, ttl: PLACE, grace: nil, label: nil)
      claim = claim(key, grace: grace, label: label)
      Postgres.new(self, connection).reserve(claim, own_namespace(claim), place_ttl(ttl), grace && Dibs.seconds(grace, "grace"), claim.owner)
    end

    # prolong makes a reserved place last for ttl from now, with this grace. A place that has ended
    # is reserved again, at the end of the queue.
    def prolong(ticket, ttl: PLACE, grace: nil)
      token, namespace, key = Ticket.read(ticket)
      ask_place(claim(key, namespace: namespace, token: token, grace: grace, place_ttl: place_ttl(ttl)))
      nil
    end

    # redeem runs the block while it holds the key at a reserved place, like lock. If it gives up
    # waiting, the place stays and can be redeemed again. If the place has ended, wait: 0 takes the
    # key if it is free, and a caller that waits joins the queue at the end. The end of the block
    # ends the place. grace limits how long the place keeps others from a free key if this process
    # dies.
    def redeem(ticket, grace: nil, **options, &block)
      raise ArgumentError, "dibs: redeem needs a block" unless block

      token, namespace, key = Ticket.read(ticket)
      claim = asked(key, options, namespace: namespace, from: token, grace: grace)
      begin
        hold(claim, &block)
      rescue Mismatch => e
        local.undoer.settle(place_of(ticket), "release") if e.key.equal?(claim.key)
        raise
      end
    end

    # cancel gives a reserved place back. It raises Lost if the place had ended before.
    def cancel(ticket)
      claim = place_of(ticket)
      tries = Tries.new(@timeout)
      repeated = false
      begin
        answers, _, again = local.call("settle", { settlements: [claim.named.merge(outcome: "release")] }, 1)
        type, detail = answers[0]["error"]&.values_at("type", "detail")
        local.undoer.settled(claim, "release") if type.nil? || type == "lost"
        raise self.class.error(type, detail, claim) if type && !(type == "lost" && (again || repeated))
      rescue Unavailable, Busy, Overloaded => e
        repeated ||= e.unanswered
        retry if tries.again?
        raise
      end
      nil
    end

    # give_back is cancel, now or in the background.
    def give_back(ticket) # :nodoc:
      over = false
      cancel(ticket)
      over = true
    rescue Lost
      over = true
    rescue Error
      nil
    ensure
      local.undoer.settle(place_of(ticket), "release") unless over || @closed
    end

    # held? reports whether a caller holds the key, or comes before a new one. It changes nothing.
    def held?(key)
      claim = claim(key)
      answer = look(claim)
      return answer["state"] == "held" if %w[held free].include?(answer["state"])

      raise refusal(claim, answer)
    end

    # close settles what is to be undone, for at most the timeout, and closes the connections of
    # this process. Callers that wait get Closed. Leases that are held are not renewed any more.
    def close
      @closed = true
      Dibs.clients.delete(self)
      here = @local
      return unless here && here.pid == Process.pid

      ends = Dibs.now + @timeout
      here.end_waits(@timeout)
      here.undoer.flush(ends - Dibs.now)
      here.renewer.stop
      here.undoer.stop
      here.close
      nil
    end

    # inspect shows no token.
    def inspect
      "#<Dibs::Client #{@address.servers.join(",")}>"
    end

    # flush waits until what is undone in the background is done. At the end of the program it is
    # called by itself.
    def flush(limit = @timeout)
      here = @local
      here && here.pid == Process.pid ? here.undoer.flush(limit) : 0
    end

    # forked is called in a process that was forked.
    def forked # :nodoc:
      here = @local
      @local = nil
      here&.abandon
    end

    # error is the error of an element.
    def self.error(type, detail, claim) # :nodoc:
      kind = { "lost" => Lost, "busy" => Busy, "full" => Full, "too_large" => TooLarge }.fetch(type, Refused)
      kind.new("dibs: the key #{claim.digest}: #{Dibs.plain(detail || type)}", key: claim.key)
    end

    def self.ttl(value) # :nodoc:
      ttl = Dibs.seconds(value, "ttl")
      raise ArgumentError, "dibs: ttl is #{value.inspect}; it must be at least #{MIN_TTL} seconds" if ttl < MIN_TTL

      ttl
    end

    private

    # local is what the client has in this process.
    def local
      open!
      here = @local
      return here if here && here.pid == Process.pid

      @lock.synchronize do
        @local = nil if @local && @local.pid != Process.pid
        Dibs.clients << self unless Dibs.clients.include?(self)
        @local ||= Local.new(@address, @timeout)
      end
    end

    def open!
      raise Closed, "dibs: the client is closed" if @closed
    end

    # OPTIONS are what a caller may say of a lock.
    OPTIONS = %i[ttl wait permits weight fingerprint at_most_once margin longest label].freeze
    private_constant :OPTIONS

    # asked is the claim of a caller's options, and of what the method adds.
    def asked(key, options, **more)
      unknown = options.keys - OPTIONS
      bad "unknown keyword: #{unknown.join(", ")}; there are #{OPTIONS.join(", ")}" unless unknown.empty?
      claim(key, **options, **more)
    end

    # claim validates what the caller asks for.
    def claim(key, ttl: nil, wait: nil, permits: 1, weight: 1, fingerprint: nil, at_most_once: false, margin: nil,
              longest: nil, label: nil, max_age: nil, grace: nil, place_ttl: nil, from: nil, token: nil, namespace: @namespace)
      valid_key(key)
      ttl = ttl ? self.class.ttl(ttl) : @ttl
      wait = Dibs.seconds(wait, "wait") if wait
      grace = Dibs.seconds(grace, "grace") if grace
      longest = Dibs.seconds(longest, "longest") if longest
      margin = Dibs.seconds(margin, "margin") if margin
      bad "margin is #{margin}; it must be at most half of the ttl of #{ttl}" if margin && margin > ttl / 2
      bad "permits is #{permits.inspect}; it must be 1 to 65536" unless permits.is_a?(Integer) && permits.between?(1, 65_536)
      bad "weight is #{weight.inspect}; it must be 1 to permits" unless weight.is_a?(Integer) && weight.between?(1, permits)
      bad "permits cannot be more than 1 together with at_most_once or max_age" if permits > 1 && (at_most_once || max_age)
      if fingerprint && !fingerprint.to_s.match?(/\A\h{64}\z/)
        bad "fingerprint is no SHA-256 in 64 hexadecimal digits, such as Digest::SHA256.hexdigest(text)"
      end
      Claim.new(key.dup.freeze, ttl: ttl, wait: wait, permits: permits, weight: weight, fingerprint: fingerprint,
                at_most_once: at_most_once, margin: margin, longest: longest, max_age: max_age, grace: grace,
                place_ttl: place_ttl, from: from, token: token, namespace: namespace,
                owner: { host: HOST, pid: Process.pid, label: (label || @label).to_s.scrub[0, 100] })
    end

    HOST = Socket.gethostname.scrub
    private_constant :HOST

    def valid_key(key)
      bad "a key is a String, not #{key.class}" unless key.is_a?(String)
      bad "the key has #{key.bytesize} bytes; it must have 1 to 512" unless key.bytesize.between?(1, 512)
    end

    def bad(why)
      raise ArgumentError, "dibs: #{why}"
    end

    def place_ttl(value)
      ttl = Dibs.seconds(value, "ttl")
      ttl < 0.001 ? bad("the ttl of a place is #{value.inspect}; it must be at least 1 ms") : ttl
    end

    def place_of(ticket)
      token, namespace, key = Ticket.read(ticket)
      claim(key, namespace: namespace, token: token)
    end

    # hold runs the block under a lease. Nothing interrupts what is between the block and the
    # store: an exception from another thread, Timeout and Thread#kill strike while it waits and
    # while the block runs.
    def hold(claim)
      Thread.handle_interrupt(Object => :never) do
        lease = take(claim, true)
        raised = nil
        stack = (Thread.current[:dibs_leases] ||= [])
        stack.push(lease)
        begin
          Thread.handle_interrupt(Object => :immediate) { yield lease.check }
        rescue Exception => e # rubocop:disable Lint/RescueException
          raised = e
          raise
        ensure
          stack.delete(lease)
          lost = lease.finish
          raise lost if lost && raised.nil? && Thread.current.status != "aborting"
        end
      end
    end

    # take returns the lease, or raises and leaves nothing of the claim behind.
    def take(claim, renewed)
      here = local
      waits_for_itself(claim)
      lease = nil
      here.wait_begins
      begin
        answer, sent = Thread.handle_interrupt(Object => :immediate) { await(here, claim) }
        lease = Lease.new(self, here, claim, answer, sent, renewed: renewed)
      ensure
        here.undoer.settle(claim, "undo") if lease.nil? && claim.open && here.pid == Process.pid
        here.wait_ends
      end
    end

    def waits_for_itself(claim)
      return if claim.wait&.zero?

      mine = (Thread.current[:dibs_leases] || []).select { |l| l.client.equal?(self) && l.key == claim.key && l.live? }
      mine.select! { |l| l.claim.namespace == claim.namespace }
      return if mine.empty?
      return if mine.all? { |l| l.claim.permits == claim.permits } && mine.sum { |l| l.claim.weight } + claim.weight <= claim.permits

      raise Held.new("dibs: the key #{claim.digest} is held by the caller itself, and waiting would never end", key: claim.key)
    end

    # await asks until the claim is granted, refused or given up, and returns the answer and when
    # the claim was sent.
    def await(here, claim)
      start = heard = Dibs.now
      try = claim.wait&.zero?
      ends = claim.wait && start + claim.wait
      poll = 0.0
      pause = 0.01
      loop do
        open!
        answer, sent = ask(here, claim, try ? "try" : "queue", poll)
        kind = answer.dig("error", "type")
        raise self.class.error(kind, answer.dig("error", "detail"), claim) if kind

        heard, pause = Dibs.now, 0.01
        case answer["state"]
        when "granted"
          # The trust counts from when the claim was sent. If that was long ago, the same claim
          # is sent again: it gets the same lease, for a whole TTL.
          return answer, sent if poll.zero? || heard - sent < claim.ttl / 20
          poll = 0.0
          next
        when "held"
          raise refusal(claim, answer, heard - start) if try || (ends && heard >= ends)
        else
          raise refusal(claim, answer)
        end
        poll = [ends ? ends - heard : POLL, POLL].min
      rescue Unavailable, Busy, Overloaded => e
        open!
        # Busy is an answer. Before Unavailable, the server waited on purpose.
        heard = Dibs.now if e.is_a?(Busy) ? !try : poll.positive? && e.is_a?(Unavailable)
        pause = [pause * 2, 1.0].min
        rest = pause * rand(0.5..1.0)
        patience = try ? 1.0 : KEEP_PATIENCE
        raise if Dibs.now + rest > [heard + patience, ends && !try ? ends : Float::INFINITY].min

        sleep(rest)
        poll = 0.0 unless e.is_a?(Overloaded)
      end
    end

    # ask sends the claim once and notes what it may have at the store.
    def ask(here, claim, mode, poll)
      open = claim.open
      silent = here.undoer.claims(claim)
      claim.open = true
      body = { claims: [claim.wire(mode)] }
      body[:wait_ms] = (poll * 1000).ceil if poll.positive?
      answers, sent, again = here.call("claim", body, 1, wait: poll)
      silent = again || silent
      here.undoer.heard(claim, silent)
      answer = answers[0]
      claim.open = answer["state"] == "granted" || answer["queued"] == true || answer.key?("error") || !silent.nil?
      [answer, sent]
    rescue Error => e
      here.undoer.heard(claim, e.unanswered || silent)
      claim.open = open unless e.unanswered # nothing was done
      raise
    end

    # retrying asks once, and again for a second if the server is away.
    def retrying(claim)
      tries = Tries.new(1.0)
      begin
        answer = yield
        type, detail = answer["error"]&.values_at("type", "detail")
        raise self.class.error(type, detail, claim) if type
      rescue Unavailable, Busy, Overloaded
        retry if tries.again?
        raise
      end
      answer
    end

    # look asks for the state of a key and changes nothing.
    def look(claim)
      retrying(claim) { local.call("claim", { claims: [claim.wire("look")] }, 1)[0][0] }
    end

    # ask_place reserves a place.
    def ask_place(claim)
      answer = retrying(claim) { ask(local, claim, "reserve", 0.0)[0] }
      raise refusal(claim, answer) unless answer["state"] == "held" && answer["queued"]
    end

    # own_namespace is the namespace of a key: if the credential decides it, the server says it.
    def own_namespace(claim)
      return claim.namespace unless claim.namespace.empty?

      @own_namespace ||= look(claim(claim.key))["namespace"] || ""
    end

    # refusal is the error of an answer that is no grant.
    def refusal(claim, answer, waited = 0.0)
      digest = claim.digest
      case answer["state"]
      when "held"
        left = (answer["left_ms"] || 0) / 1000.0
        text = claim.wait&.positive? ? "after waiting #{waited.round(3)} s" : "for #{left.round(3)} s more at most unless it is renewed"
        Held.new("dibs: the key #{digest} is held, #{text}", key: claim.key, left: left, ahead: answer["ahead"] || 0, waited: waited)
      when "done"
        record = answer["record"]
        Done.new("dibs: the key #{digest} is done", key: claim.key, record: record["data"].unpack1("m0"), age: record["age_ms"] / 1000.0)
      when "mismatch"
        Mismatch.new("dibs: the key #{digest} was used with another fingerprint", key: claim.key)
      when "unknown"
        Unknown.new("dibs: the outcome of the attempt #{answer["id"]} on the key #{digest} is unknown; an operator must resolve it",
                    key: claim.key, id: answer["id"])
      else
        Refused.new("dibs: the key #{digest}: the server answers with the state #{answer["state"].inspect}", key: claim.key)
      end
    end

    # run_once runs the block and stores its outcome by keep. Nothing interrupts what comes after the
    # block, because its effect has happened.
    def run_once(lease, remember, keep)
      Thread.handle_interrupt(Object => :never) do
        begin
          result = Thread.handle_interrupt(Object => :immediate) { yield lease }
        rescue NotKept, Lost
          raise
        rescue StandardError => e
          keep.(nil) { Outcome.error(e) } if remember.any? { |r| r === e } # rubocop:disable Style/CaseEquality
          raise
        end
        Outcome.read(keep.(result) { Outcome.value(result) })
      end
    end

    # keep stores the record that the block makes, and returns it.
    def keep(lease, retention, rerun, result)
      record = yield
      lease.complete(record, keep: retention)
      record
    rescue Lost
      raise
    rescue Outcome::NoJSON, Error => e
      why = Dibs.plain(e.message)
      follows = rerun ? "the next caller runs again" : not_kept(lease, e, record, why, retention)
      raise NotKept.new("dibs: the result could not be stored, and #{follows}: #{why}", key: lease.key, result: result)
    end

    # not_kept leaves a record that says that the block ran, because nobody may run it again. It
    # returns what follows. What no server answered, or was too busy for, is stored in the background:
    # nothing releases the lease, which is abandoned if that fails.
    def not_kept(lease, error, record, why, retention)
      unless [Unavailable, Busy, Overloaded].any? { |c| c === error } # rubocop:disable Style/CaseEquality
        record = Outcome.not_kept(why)
        lease.complete(record, keep: retention)
        return "later callers get Dibs::Unrecorded"
      end
      lease.complete_later(record, retention)
      "is stored in the background while the lease lasts"
    rescue Lost
      raise
    rescue Error
      lease.complete_later(record, retention)
      "that is noted in the background while the lease lasts"
    end

    # run_once_in is run_once in a transaction.
    def run_once_in(database, lease, retention, remember)
      text = nil
      settled = false
      database.run do
        result = yield lease
        begin
          text = Outcome.value(result)
          lease.settle_in(database, text, retention, "marked")
        rescue Outcome::NoJSON, TooLarge => e
          raise NotKept.new("dibs: the result could not be stored, so the transaction was rolled back. Nothing in it was done, and the next caller runs: #{Dibs.plain(e.message)}", key: lease.key, result: nil)
        end
        settled = true
      end
      raise NotKept.new("dibs: the block rolled its transaction back, so its result is not kept", key: lease.key, result: nil) unless settled
      raise WrongTransaction.new("dibs: a statement failed after the block of once, so PostgreSQL answered COMMIT with ROLLBACK, and nothing was done", key: lease.key) unless database.committed?

      lease.committed
      Outcome.read(text)
    rescue StandardError => e
      return Outcome.read(text) if settled && committed?(lease, text, retention) # and its answer did not arrive

      own = [NotKept, Lost, WrongTransaction].any? { |c| c === e } # rubocop:disable Style/CaseEquality
      remembered = !settled && !own && remember.any? { |r| r === e } # rubocop:disable Style/CaseEquality
      keep(lease, retention, true, nil) { Outcome.error(e) } if remembered # the transaction did nothing
      raise
    end

    # committed? finds out whether a transaction that settled the lease was committed, although it
    # raised. If the servers do not say it, the next call of once finds it out.
    def committed?(lease, text, retention)
      lease.find_out(text, retention)
    rescue Error
      false
    end
  end

  # Outcome is the record that once leaves behind, the same as in the Go library.
  module Outcome # :nodoc:
    class NoJSON < StandardError; end

    module_function

    def value(result)
      check(result, "the result")
      JSON.generate({ "value" => result })
    rescue NoJSON
      raise
    rescue JSON::NestingError, SystemStackError
      no("the result is nested too deeply")
    rescue StandardError => e
      no("JSON of the result fails with #{e.class}")
    end

    def error(raised)
      JSON.generate({ "error" => raised.message.dup.force_encoding(Encoding::UTF_8).scrub })
    end

    # not_kept says that the run was done, and why its result could not be stored.
    def not_kept(why)
      JSON.generate({ "not_kept" => why.dup.force_encoding(Encoding::UTF_8).scrub[0, 200] })
    end

    def read(text)
      JSON.parse(text)["value"]
    end

    def recall(done, claim)
      body = JSON.parse(done.record)
      raise JSON::ParserError unless body.is_a?(Hash) && (body.key?("value") || body["error"].is_a?(String) || body["not_kept"].is_a?(String))
      raise Remembered.new(body["error"], key: claim.key) if body["error"]
      raise Unrecorded.new(claim, body["not_kept"]) if body["not_kept"]

      body["value"]
    rescue JSON::ParserError
      raise Refused.new("dibs: the record of the key #{claim.digest} is not one of once", key: claim.key)
    end

    # check refuses what JSON.generate would turn into some text.
    def check(value, what)
      case value
      when nil, true, false, Integer then nil
      when Float then value.finite? || no("#{what} is #{value}")
      when String
        value.encode(Encoding::UTF_8).valid_encoding? || no("#{what} is a String that is not UTF-8")
      when Array then value.each { |v| check(v, "an element of #{what}") }
      when Hash
        value.each_key { |k| k.is_a?(String) || k.is_a?(Symbol) || no("a key of #{what} is of class #{k.class}, not a String or a Symbol") }
        value.keys.map(&:to_s).uniq.size == value.size || no("#{what} has a key as String and as Symbol")
        value.each_value { |v| check(v, "a value of #{what}") }
      else no("#{what} is of class #{value.class}; return nil, true, false, numbers, strings, arrays and hashes")
      end
    rescue EncodingError
      no("#{what} is a String that is not UTF-8")
    end

    def no(why)
      raise NoJSON, why
    end
  end

  # Semaphore is a mixin: its block runs in both cases and is told which.
  module Semaphore
    # with_semaphore_lock yields :locked while it holds the key, or :skipped at once if another
    # caller holds it, and returns what the block returns. The same key in another namespace is
    # another key: it is the key "NAMESPACE:KEY" of Client#lock. The lease is renewed while the block runs. The client is Dibs.default. It raises
    # the errors of Client#lock except Held.
    def with_semaphore_lock(key, ttl: TTL, namespace: nil)
      raise ArgumentError, "dibs: a key is a String that is not empty, not #{key.inspect}" unless key.is_a?(String) && !key.empty?

      name = namespace ? "#{namespace.to_s.gsub(/[%:]/) { |c| format("%%%02X", c.ord) }}:#{key}" : key
      ours = true
      begin
        return Dibs.default.lock(name, ttl: ttl, wait: 0) do
          ours = false
          yield :locked
        end
      rescue Held
        raise unless ours # the block's own
      end
      yield :skipped
    end
  end

  # LockManager locks and unlocks keys without a block. A lock lasts for its ttl and is not
  # renewed, so that one that is forgotten ends by itself. As with a Mutex, only the thread (and the
  # fiber) that locked a key can unlock it, and only with the same manager. One manager for the
  # program is safe for threads.
  class LockManager
    def initialize(client = Dibs.default)
      @client = client
      @leases = {}
      @mutex = Mutex.new
    end

    # lock takes the key for ttl seconds, without waiting. It returns true, or false if the key is
    # held, also by this manager.
    def lock(key, ttl = TTL)
      lease = @client.acquire(key, ttl: ttl, wait: 0, renew: false)
      @mutex.synchronize do
        @leases.delete_if { |_, l| !l.held? } if @leases.size >= 1000 # forgotten ones
        @leases[[Fiber.current, key.dup.freeze]] = lease
      end
      true
    rescue Held
      false
    end

    # unlock gives the key back. It returns false if this thread has not locked it with this manager,
    # or does not hold it any more.
    def unlock(key)
      lease = @mutex.synchronize { @leases.delete([Fiber.current, key]) }
      return false unless lease

      lease.release
      true
    rescue Lost
      false
    end

    # locked? reports whether the key is held by any program.
    def locked?(key)
      @client.held?(key)
    end
  end

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
      sent = @dibs_sent
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

  # Forks closes, in a process that was forked, the connections of its parent. (Ruby 3.0 has no
  # such hook: there they are dropped when the child first uses the client.)
  module Forks # :nodoc:
    def _fork
      pid = super
      Dibs.clients.each(&:forked) if pid.zero?
      pid
    end
  end
  Process.singleton_class.prepend(Forks) if Process.respond_to?(:_fork)

  at_exit { clients.each { |client| client.flush(2.0) } }
end
