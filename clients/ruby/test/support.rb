# frozen_string_literal: true

# What the tests share: real servers, a line that can be cut, and processes. DIBS_PROGRAM is the
# path of dibs.

require "minitest/autorun"
require "minitest/mock"
require "dibs"
require "rbconfig"
require "tmpdir"
require "fileutils"
require "timeout"

# LIMIT is how long anything may take, in seconds.
LIMIT = 60

# Server is a `dibs serve` on a SQLite file.
class Server
  attr_reader :url, :log

  def initialize(*flags, dir: Support.dir, listen: nil, store: nil)
    @dir = dir
    @listen = listen || "unix:#{dir}/serve.sock"
    @store = store || "sqlite:#{dir}/dibs.db"
    @flags = flags
    @log = "#{dir}/log#{object_id}"
    start
  end

  # start starts the server again, at the address it had if that is given.
  def start(listen = @listen)
    program = ENV.fetch("DIBS_PROGRAM") { abort "DIBS_PROGRAM is not set: the path of the program dibs" }
    File.write(@log, "")
    @pid = Process.spawn(program, "serve", "--store", @store, "--listen", listen, *@flags, out: @log, err: [:child, :out])
    Support.wait("the server listens: #{File.read(@log)}") do
      @url = File.read(@log)[/listening on (\S+?),/, 1]
    end
  end

  attr_reader :store

  def keys(**options)
    Dibs.connect(@url, **options)
  end

  # keys_with is keys with a credential.
  def keys_with(token, **options)
    Dibs.connect(@url.sub("://", "://:#{token}@"), **options)
  end

  def kill
    Process.kill("KILL", @pid)
    Process.wait(@pid)
    @pid = nil
  end

  def stop
    kill if @pid
  end

  # socket is a connection to the server.
  def socket
    path = @url[/unix:(.*)/, 1]
    path ? UNIXSocket.new(path) : TCPSocket.new("127.0.0.1", @url[/\d+\z/].to_i)
  end

  # entry is what the server lists of a key, or nil.
  def entry(key)
    io = socket
    io.write("GET /v1/keys?places=true&key=#{URI.encode_www_form_component(key)} HTTP/1.0\r\nHost: localhost\r\n\r\n")
    line = io.read.split("\r\n\r\n", 2).last
    line.empty? ? nil : JSON.parse(line)
  ensure
    io&.close
  end

  # take ends the leases of a key, as an operator does.
  def take(key)
    io = socket
    body = JSON.generate({ key: key })
    io.write("POST /v1/keys/release HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}")
    raise "it was not taken" unless io.read.match?(/"done":[1-9]/)
  ensure
    io&.close
  end

  def waiters(key)
    entry(key)&.fetch("waiters", 0) || 0
  end

  def free?(key)
    found = entry(key)
    found.nil? || (found["runs"].to_a.empty? && found["places"].to_a.empty?)
  end
end

# Line forwards to a server. It can lose, delay and change answers.
class Line
  attr_reader :url

  # With tcp it listens on 127.0.0.1.
  def initialize(server, dir = Support.dir, tcp: false)
    @to = server
    @listener = tcp ? TCPServer.new("127.0.0.1", 0) : UNIXServer.new("#{dir}/line.sock")
    @url = tcp ? "http://127.0.0.1:#{@listener.addr[1]}" : "unix:#{dir}/line.sock"
    @cut = Hash.new(0)
    @says = {}
    @freezes = {}
    @before = {}
    @lost = Queue.new
    @clients = []
    @thread = Thread.new { loop { Thread.new(@listener.accept.tap { |c| @clients << c }) { |c| serve(c) } } }
  end

  # cut loses the next answers to calls of the verb, after the server has done them.
  def cut(verb, times)
    @lost.clear
    @cut[verb] = times
  end

  # say answers the calls of the verb that come after those whose answers are lost. done says whether
  # the server does the call before.
  def say(verb, answer, done)
    @says[verb] = [answer, done]
  end

  # freeze keeps calls of the verb back, as a server that is stopped does. The block that it returns
  # forwards what came until then, although its caller does not listen any more, and waits for the
  # answers.
  def freeze(verb)
    frozen, thawed, done = @freezes[verb] = [Queue.new, Queue.new, Queue.new]
    lambda do
      @freezes.delete(verb)
      Array.new(frozen.size) { thawed << true }
      Timeout.timeout(LIMIT) { Array.new(frozen.size) { done.pop } }
    end
  end

  # before calls the block before the answer to a call of the verb is forwarded.
  def before(verb, &block)
    @before[verb] = block
  end

  # forward ends what cut, say and before began.
  def forward
    [@cut, @says, @before].each(&:clear)
  end

  # response is a response of HTTP.
  def self.response(status, type, body)
    "HTTP/1.1 #{status}\r\nContent-Type: #{type}\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}"
  end

  # problem is a response of dibs serve.
  def self.problem(status, name)
    response(status, "application/problem+json", JSON.generate(type: "https://example.org/serve.md##{name}", title: name))
  end

  # lost waits until an answer was lost.
  def lost
    Timeout.timeout(LIMIT) { @lost.pop }
  end

  # close refuses connections, and ends those that there are.
  def close
    @thread.kill.join
    @listener.close
    @clients.each { |c| c.shutdown rescue nil }
  end

  private

  def serve(client)
    server = @to.socket
    loop do
      head = +""
      head << (client.gets || return) until head.end_with?("\r\n\r\n")
      verb = head[%r{/v1/(\w+)}, 1]
      body = client.read(head[/content-length: (\d+)/i, 1].to_i)
      frozen, thawed, done = @freezes[verb]
      if frozen
        frozen << true
        thawed.pop
        server.close # a server does not wait long for the first call of a connection
        server = @to.socket
      end
      said, forwarded = @cut[verb].positive? ? nil : @says[verb]
      if said && !forwarded
        client.write(said)
        next
      end
      server.write(head, body)
      answer = +""
      answer << (server.gets || return) until answer.end_with?("\r\n\r\n")
      if (length = answer[/content-length: (\d+)/i, 1])
        answer << server.read(length.to_i)
      else # chunked
        answer << (server.gets || return) until answer.end_with?("\r\n0\r\n")
        answer << server.gets
      end
      done&.push(true)
      @before[verb]&.call
      if @cut[verb].positive?
        @cut[verb] -= 1
        @lost << verb
        return
      end
      client.write(said || answer)
    end
  rescue SystemCallError, IOError
    nil
  ensure
    client.close
    server&.close
  end
end

module Support
  module_function

  # dir makes a folder that is removed at the end.
  def dir
    Dir.mktmpdir("dibs").tap { |d| Minitest.after_run { FileUtils.rm_rf(d) } }
  end

  # wait waits until the block is true.
  def wait(what)
    ends = Dibs.now + LIMIT
    until (found = yield)
      raise "after #{LIMIT} s still not: #{what}" if Dibs.now > ends

      sleep 0.005
    end
    found
  end

  # wait_renewed waits until a lease is renewed.
  def wait_renewed(lease)
    last = lease.check.left
    wait("the lease is renewed") do
      left = lease.check.left
      renewed = left > last
      last = left
      renewed
    end
  end

  # script runs Ruby in a process of its own, with the server's URL, and returns its pid and the
  # pipes of its input and output.
  def script(url, text, env = {})
    input, to = IO.pipe
    from, output = IO.pipe
    lib = File.expand_path("../lib", __dir__)
    pid = Process.spawn({ "DIBS_SERVER" => url, **env }, RbConfig.ruby, "-I", lib, "-rdibs", "-e", "$stdout.sync = true\n#{text}",
                        in: input, out: output)
    input.close
    output.close
    [pid, to, from]
  end

  # line reads a line of a script.
  def line(from)
    Timeout.timeout(LIMIT) { from.gets&.chomp }
  end

  def ended(pid)
    Timeout.timeout(LIMIT) { Process.wait2(pid)[1] }
  end
end

# Case is a test against a server that all tests of the process share.
class Case < Minitest::Test
  include Support

  class << self
    def server
      @@server ||= Server.new.tap { |s| Minitest.after_run { s.stop } }
    end
  end

  def setup
    @server = self.class.server
    @keys = @server.keys
    @key = "#{self.class}/#{name} #{SecureRandom.hex(4)}"
  end

  def teardown
    @keys.close
  end

  # assert_free says that nothing is left of the key. What is undone in the background may take a
  # moment, but no lease runs out in that time.
  def assert_free(key = @key)
    wait("#{key} is free, and not #{@server.entry(key)}") { @server.free?(key) }
  end
end
