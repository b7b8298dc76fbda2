# frozen_string_literal: true

module Dibs
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
end
