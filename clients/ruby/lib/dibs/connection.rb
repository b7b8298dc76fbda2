# frozen_string_literal: true

module Dibs
  # Connection is one connection of HTTP/1.1. It writes a request at once, reads what the answer of a
  # dibs serve has, and ends each call at one moment, even if a little arrives again and again until
  # then.
  class Connection # :nodoc:
    # Late: the time of the call is over.
    class Late < StandardError; end

    # Strange: what came is not an answer of HTTP.
    class Strange < StandardError; end

    Answer = Struct.new(:status, :type, :body)

    MAX_HEAD = 1 << 16 # bytes
    PIECE = 1 << 16

    attr_reader :server, :used

    def initialize(server)
      @server = server
      @head = "Host: #{server.host.include?(":") ? "[#{server.host}]" : server.host}#{":#{server.port}" if server.port}\r\n" \
              "Content-Type: application/json\r\n#{"Authorization: Bearer #{server.secret}\r\n" if server.secret}Content-Length: "
      @buffer, @piece = String.new, String.new
    end

    # open connects, by that moment.
    def open(ends)
      @ends = ends
      socket = server.socket ? unix : tcp
      @io = server.tls ? secure(socket) : socket
      @raw = socket
    ensure
      socket&.close unless @raw
    end

    def open?
      !@raw.nil?
    end

    # exchange sends a request and returns the Answer.
    def exchange(method, path, body, ends)
      @ends = ends
      refused = write("#{method} #{path} HTTP/1.1\r\n".b << @head << body.bytesize.to_s << "\r\n\r\n" << body.b)
      answer = read
      @used = Dibs.now
      answer
    rescue EOFError, SystemCallError
      raise refused || $! # rubocop:disable Style/SpecialGlobalVars
    end

    # stale? reports whether the connection was not used for long, or was closed by the server. Then
    # nothing is sent over it.
    def stale?
      @closing || !@buffer.empty? || Dibs.now - @used > IDLE || !IO.select([@raw], nil, nil, 0).nil?
    rescue IOError
      true
    end

    # cut ends the call that another thread makes.
    def cut
      quietly { @raw&.shutdown }
    end

    # abandon closes the socket and says nothing to the server, because the process that forked
    # this one uses the connection.
    def abandon
      quietly { @raw&.close }
    end

    def close
      quietly { @io&.close }
    end

    private

    def quietly
      yield
    rescue IOError, SystemCallError, OpenSSL::SSL::SSLError
      nil
    end

    # write returns the error if the server closed the connection before it had the whole request:
    # then it may have answered why.
    def write(text)
      until text.empty?
        case written = @io.write_nonblock(text, exception: false)
        when Integer then text = text.byteslice(written..)
        else await(written)
        end
      end
      nil
    rescue Errno::EPIPE, Errno::ECONNRESET => e
      @closing = true
      e
    end

    def read
      begin
        head = upto("\r\n\r\n")
        minor, status = head.match(%r{\AHTTP/1\.([01]) (\d{3})[ \r]})&.captures
        raise Strange, "it is not HTTP/1.1" unless status
      end while status.start_with?("1")
      @closing = true if minor == "0" || head.match?(/^connection:[^\r]*\bclose\b/i)
      Answer.new(status, head[/^content-type: *([^;\s]+)/i, 1]&.downcase, body(head, status))
    end

    def body(head, status)
      return "" if %w[204 304].include?(status)
      return chunks if head.match?(/^transfer-encoding:[^\r]*\bchunked\b/i)

      length = head[/^content-length: *(\d+) *\r/i, 1]
      length ? take(length.to_i) : rest
    end

    def chunks
      whole = String.new
      until (size = upto("\r\n")[/\A\h+/] || raise(Strange, "a chunk has no size")).hex.zero?
        whole << take(size.hex)
        take(2)
      end
      nil until upto("\r\n") == "\r\n" # after the trailers
      whole
    end

    # rest is a body without a length.
    def rest
      @closing = true
      loop { fill }
    rescue EOFError
      take(@buffer.bytesize)
    end

    def upto(mark)
      until (at = @buffer.index(mark))
        raise Strange, "its head is too long" if @buffer.bytesize > MAX_HEAD

        fill
      end
      @buffer.slice!(0, at + mark.bytesize)
    end

    def take(count)
      fill while @buffer.bytesize < count
      @buffer.slice!(0, count)
    end

    def fill
      left
      case got = @io.read_nonblock(PIECE, @piece, exception: false)
      when String then @buffer << got
      when nil then raise EOFError, "the server closed the connection"
      else await(got)
      end
    end

    def await(state, socket = @raw)
      (state == :wait_readable ? socket.wait_readable(left) : socket.wait_writable(left)) || left
    end

    # left is how long the call may take.
    def left
      left = @ends - Dibs.now
      left.positive? ? left : raise(Late, "no answer in time")
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
      resolver.join(left) ? resolver.value : raise(Late, "the name is not resolved in time")
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
        await(state, socket)
      end
      secured.post_connection_check(server.host)
      secured
    end
  end
end
