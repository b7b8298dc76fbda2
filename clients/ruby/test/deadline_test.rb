# frozen_string_literal: true

require_relative "support"

# A timeout bounds the call, whatever arrives meanwhile. Without that these calls do not end.
class DeadlineTest < Case
  # Slow is a server that says what it has to say, and then a byte again and again.
  class Slow
    attr_reader :url

    def initialize(says, byte, scheme: "http")
      @listener = TCPServer.new("127.0.0.1", 0)
      @url = "#{scheme}://127.0.0.1:#{@listener.addr[1]}"
      @thread = Thread.new { loop { Thread.new(@listener.accept) { |io| drip(io, says, byte) } } }
    end

    def stop
      @thread.kill.join
      @listener.close
    end

    private

    def drip(io, says, byte)
      io.write(says)
      loop do
        sleep 0.05
        io.write(byte)
      end
    rescue SystemCallError, IOError
      nil
    ensure
      io.close
    end
  end

  HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
  SLOW = {
    "its status" => ["", "H"],
    "interim answers" => ["", "HTTP/1.1 100 Continue\r\n\r\n"],
    "its headers" => [HEAD, "X: y\r\n"],
    "its body" => ["#{HEAD}Content-Length: 1000000\r\n\r\n", " "],
    "the sizes of chunks" => ["#{HEAD}Transfer-Encoding: chunked\r\n\r\n", "0"],
    "a body without a length" => ["#{HEAD}\r\n", " "]
  }.freeze

  def ends(keys)
    Timeout.timeout(LIMIT) { assert_raises(Dibs::Unavailable) { keys.held?(@key) } }
  end

  SLOW.each do |what, (says, byte)|
    define_method("test_a_server_is_slow_with_#{what.tr(" ", "_")}") do
      slow = Slow.new(says, byte)
      keys = Dibs.connect(slow.url, timeout: 0.5)
      ends(keys)
      Timeout.timeout(LIMIT) { assert_raises(Dibs::Unavailable) { keys.lock(@key, wait: 0) { flunk } } }
    ensure
      slow.stop
    end
  end

  def test_the_beginning_of_tls_is_slow
    slow = Slow.new("\x16\x03\x03\x40\x00".b, "\x02".b, scheme: "https")
    ends(Dibs.connect(slow.url, timeout: 0.5))
  ensure
    slow&.stop
  end

  # full listens at an address and accepts nothing, and its queue of connections is full.
  def full(address)
    listener = Socket.new(address.pfamily, :STREAM)
    listener.bind(address)
    listener.listen(0)
    kept = []
    loop do
      socket = Socket.new(address.pfamily, :STREAM)
      kept << socket
      begin
        socket.connect_nonblock(listener.local_address)
      rescue IO::EINPROGRESSWaitWritable
        break unless socket.wait_writable(0.2)
      rescue Errno::EAGAIN
        break
      end
    end
    yield listener.local_address
  ensure
    kept&.each(&:close)
    listener.close
  end

  # All of 127.0.0.0/8 is this host.
  def test_a_name_has_many_addresses_that_do_not_answer
    full(Addrinfo.tcp("0.0.0.0", 0)) do |local|
      addresses = (1..200).map { |i| Addrinfo.tcp("127.0.0.#{i}", local.ip_port) }
      resolve = lambda do |*arguments|
        arguments.last == Socket::AI_NUMERICHOST ? raise(SocketError) : addresses
      end
      Addrinfo.stub(:getaddrinfo, resolve) { ends(Dibs.connect("http://many.example:1", timeout: 1)) }
    end
  end

  def test_an_address_that_answers_is_found_behind_one_that_does_not
    server = Server.new(listen: "127.0.0.1:0")
    port = server.url[/\d+\z/].to_i
    addresses = [Addrinfo.tcp("127.0.0.9", port), Addrinfo.tcp("127.0.0.1", port)]
    resolve = ->(*arguments) { arguments.last == Socket::AI_NUMERICHOST ? raise(SocketError) : addresses }
    full(addresses[0]) do
      Addrinfo.stub(:getaddrinfo, resolve) { refute Dibs.connect("http://localhost:#{port}", timeout: 8).held?(@key) }
    end
  ensure
    server&.stop
  end

  def test_the_resolver_hangs
    resolve = ->(*arguments) { arguments.last == Socket::AI_NUMERICHOST ? raise(SocketError) : sleep }
    Addrinfo.stub(:getaddrinfo, resolve) { ends(Dibs.connect("http://never.example:1", timeout: 0.2)) }
  end

  # The undoer's calls are not interrupted, but a resolver that hangs must not keep the program.
  def test_a_program_ends_while_the_resolver_hangs
    pid, _, from = script("http://never.example:1", <<~RUBY)
      def Addrinfo.getaddrinfo(*arguments) = arguments.last.zero? ? sleep : raise(SocketError)
      keys = Dibs.connect(timeout: 0.1)
      keys.send(:local).undoer.settle(keys.send(:claim, "key"), "undo")
      sleep 0.01 until Thread.list.size > 2
      puts "it hangs"
    RUBY
    assert_equal "it hangs", line(from)
    assert_predicate ended(pid), :success?
  end

  def test_a_socket_accepts_nothing
    path = "#{Support.dir}/full.sock"
    full(Addrinfo.unix(path)) { ends(Dibs.connect("unix:#{path}", timeout: 0.3)) }
  end

  def test_a_slow_server_does_not_stop_the_renewer
    slow = Slow.new(*SLOW["its headers"])
    server = Server.new(listen: "127.0.0.1:0")
    keys = Dibs.connect("#{slow.url},#{server.url.delete_prefix("http://")}", timeout: 4)
    keys.lock(@key, ttl: 12, wait: 0) do |lease|
      keys.send(:local).wire.instance_variable_set(:@current, 0)
      2.times { wait_renewed(lease) }
    end
  ensure
    [slow, server].each { |s| s&.stop }
  end
end
