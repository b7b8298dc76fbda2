# frozen_string_literal: true

require_relative "support"
require "dibs/send"
require "dibs/faraday"

# The side that sends. It passes the table of cases that all clients pass.
class SendTest < Minitest::Test
  TABLE = JSON.parse(File.read(File.expand_path("../../testdata/sending.json", __dir__))).fetch("cases")

  # Origin is a server that gives the answers of a case, and notes what it gets.
  class Origin
    attr_reader :url, :got

    def initialize(answers)
      @answers = answers
      @got = []
      @listener = TCPServer.new("127.0.0.1", 0)
      @url = "http://127.0.0.1:#{@listener.addr[1]}/charges"
      @thread = Thread.new { loop { serve(@listener.accept) } }
    end

    def stop
      @thread.kill.join
      @listener.close
    end

    private

    def serve(io)
      head = +""
      head << (io.gets || return) until head.end_with?("\r\n\r\n")
      body = io.read(head[/content-length: (\d+)/i, 1].to_i)
      @got << [head, body]
      io.write(text(@answers[[@got.size, @answers.size].min - 1]))
    ensure
      io.close
    end

    def text(answer)
      return "" if answer["reset"]

      date = Time.now + (answer["clock"] || 0)
      fields = { "Date" => date.httpdate, "Content-Length" => 4, "Connection" => "close" }
      fields["Retry-After"] = answer["retry_after"] if answer["retry_after"]
      fields["Retry-After"] = (date + answer["retry_after_date"]).httpdate if answer["retry_after_date"]
      fields["Idempotent-Replayed"] = "true" if answer["replayed"]
      "HTTP/1.1 #{answer["status"]} Status\r\n#{fields.map { |n, v| "#{n}: #{v}\r\n" }.join}\r\n#{answer["cut"] ? "te" : "text"}"
    end
  end

  # Time is a clock that does not wait.
  class Clock
    attr_reader :now, :pauses

    def initialize
      @now, @pauses = 0, []
    end

    def sleep(seconds)
      @now += seconds
      @pauses << seconds
    end
  end

  # WAYS send the request of a case and return the status and the body.
  WAYS = {
    "Net::HTTP" => lambda do |url, method, headers, key, options|
      request = Net::HTTP.const_get(method.capitalize).new(url, { "Content-Type" => "text/plain" }.merge(headers))
      request.body = "amount=700"
      answer = Dibs::Sender.new(**options).call(URI(url), request, key: key)
      [answer.code.to_i, answer.body]
    end,
    "a Net::HTTP that is kept" => lambda do |url, method, headers, key, options|
      request = Net::HTTP.const_get(method.capitalize).new(url, { "Content-Type" => "text/plain" }.merge(headers))
      request.body_stream = StringIO.new("amount=700")
      request.content_length = 10
      Net::HTTP.start(URI(url).host, URI(url).port) do |http|
        answer = Dibs::Sender.new(**options).call(http, request, key: key)
        [answer.code.to_i, answer.body]
      end
    end,
    "Faraday" => lambda do |url, method, headers, key, options|
      connection = Faraday.new { |f| f.request :dibs, options; f.adapter :net_http }
      answer = connection.run_request(method.downcase.to_sym, url, "amount=700", { "Content-Type" => "text/plain" }.merge(headers)) { |r| r.options.context = { key: key } if key }
      [answer.status, answer.body]
    end
  }.freeze

  WAYS.each do |name, way|
    TABLE.each do |c|
      define_method("test_#{name}: #{c["name"]}") { check(c, way) }
    end
  end

  def check(c, way)
    origin, clock = Origin.new(c["answers"]), Clock.new
    options = { max_tries: c["tries"], deadline: c["deadline"], clock: clock }.compact
    send = -> { way.(origin.url, c["method"] || "POST", c["header"] || {}, c["key"], options) }
    c["fails"] ? assert_raises(ArgumentError, IOError, SystemCallError, Faraday::ConnectionFailed, &send) : assert_equal([c["status"], "text"], send.call)
    assert_equal c["sent"], origin.got.size
    assert_equal (c["pauses"] || []).size, clock.pauses.size
    clock.pauses.zip(c["pauses"] || []) { |pause, (least, most)| assert_includes least..most, pause }
    keys = origin.got.map { |head, _| head[/^idempotency-key: (.*)\r$/i, 1] }
    assert_operator keys.uniq.size, :<=, 1
    assert_equal ["amount=700"], origin.got.map(&:last).uniq if origin.got.any?
    return if origin.got.empty?

    c.key?("field") ? assert_equal([c["field"]], keys.uniq) : assert_match(/\A"[!-~]{22,}"\z/, keys[0])
  ensure
    origin.stop
  end

  # Each request has its own key.
  def test_keys_are_new
    origin = Origin.new([{ "status" => 200 }])
    WAYS.each_value { |way| 2.times { way.(origin.url, "POST", {}, nil, {}) } }
    keys = origin.got.map { |head, _| head[/^idempotency-key: (.*)\r$/i, 1] }
    assert_equal keys, keys.uniq
  ensure
    origin.stop
  end

  # A request that is used again has a new key, or that of the call.
  def test_a_request_is_used_again
    origin = Origin.new([{ "status" => 200 }])
    request = Net::HTTP::Post.new(origin.url)
    %w[a b].each { |key| Dibs::Sender.new.call(URI(origin.url), request, key: key) }
    assert_equal ["\"a\"", "\"b\""], origin.got.map { |head, _| head[/^idempotency-key: (.*)\r$/i, 1] }
  ensure
    origin.stop
  end

  # What cannot be rewound is read.
  def test_a_pipe_is_sent_again
    origin = Origin.new([{ "reset" => true }, { "status" => 200 }])
    request = Net::HTTP::Post.new(origin.url, "Content-Length" => "10")
    request.body_stream, pipe = IO.pipe
    pipe << "amount=700"
    pipe.close
    assert_equal "200", Dibs::Sender.new(clock: Clock.new).call(URI(origin.url), request).code
    assert_equal ["amount=700"] * 2, origin.got.map(&:last)
  ensure
    origin.stop
  end

  def test_arguments_are_refused
    [{ max_tries: 0 }, { deadline: -1 }, { backoff: "1" }, { max_backoff: nil }].each { |o| assert_raises(ArgumentError) { Dibs::Sender.new(**o) } }
  end

  # A caller's own Timeout ends it.
  def test_a_timeout_of_the_caller_is_not_retried
    listener = TCPServer.new("127.0.0.1", 0)
    uri = URI("http://127.0.0.1:#{listener.addr[1]}/")
    assert_raises(Timeout::Error) { Timeout.timeout(0.1) { Dibs::Sender.new.call(uri, Net::HTTP::Get.new(uri)) } }
    taken = listener.accept
    assert_raises(IO::WaitReadable) { listener.accept_nonblock }
  ensure
    taken&.close
    listener.close
  end

  # Proxy is a dibs proxy before an origin that counts.
  class Proxy
    attr_reader :port, :count

    def initialize
      @count = 0
      @origin = TCPServer.new("127.0.0.1", 0)
      @port = TCPServer.open("127.0.0.1", 0) { |s| s.addr[1] }
      @dir = Support.dir
      @thread = Thread.new { loop { Thread.new(@origin.accept) { |io| charge(io) } } }
      start
    end

    def start
      log = "#{@dir}/proxy.log"
      File.write(log, "")
      @pid = Process.spawn(ENV.fetch("DIBS_PROGRAM"), "proxy", "--listen", "127.0.0.1:#{@port}", "--upstream", "http://127.0.0.1:#{@origin.addr[1]}",
                           "--store", "sqlite:#{@dir}/dibs.db", out: log, err: %i[child out])
      Support.wait("the proxy listens: #{File.read(log)}") { File.read(log).include?("listening") }
    end

    def kill
      Process.kill("KILL", @pid)
      Process.wait(@pid)
    end

    def stop
      kill
      @thread.kill.join
      @origin.close
    end

    def charge(io)
      head = +""
      head << (io.gets || return) until head.end_with?("\r\n\r\n")
      io.read(head[/content-length: (\d+)/i, 1].to_i)
      text = "charge #{@count += 1}"
      io.write("HTTP/1.1 201 Created\r\nContent-Length: #{text.bytesize}\r\nConnection: close\r\n\r\n#{text}")
    ensure
      io.close
    end

    # socket is what Line needs of a server.
    def socket
      TCPSocket.new("127.0.0.1", @port)
    end
  end

  # The guide's program runs as printed.
  def test_the_guide
    proxy = Proxy.new
    guide = File.read(File.expand_path("../../../docs/guides/retrying-clients.md", __dir__))
    text = guide[/^```rb\n(.*?)^```/m, 1].gsub("127.0.0.1:8080", "127.0.0.1:#{proxy.port}")
    pid, _, from = Support.script("", text)
    assert_equal "201\ncharge 1\n201\ncharge 2\n", Timeout.timeout(LIMIT) { from.read }
    assert_predicate Support.ended(pid), :success?
  ensure
    proxy&.stop
  end

  # The answer of the first try is lost, and the proxy is killed and started again.
  WAYS.each do |name, way|
    define_method("test_#{name}: a proxy is killed") do
      proxy = Proxy.new
      line = Line.new(proxy, tcp: true)
      times = 0
      line.before(nil) do
        next if (times += 1) > 1

        proxy.kill
        proxy.start
        raise IOError, "lost"
      end
      assert_equal [201, "charge 1"], way.("#{line.url}/charges", "POST", {}, "order-17", {})
      assert_equal [2, 1], [times, proxy.count]
    ensure
      line&.close
      proxy&.stop
    end
  end
end
