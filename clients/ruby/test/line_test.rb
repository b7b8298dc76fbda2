# frozen_string_literal: true

require_relative "support"

# Servers that go away, and answers that are lost.
class LineTest < Case
  def setup
    super
    @line = Line.new(@server)
    @over = Dibs.connect(@line.url)
  end

  def teardown
    @over.close
    @line.close
    super
  end

  def test_no_server
    ["unix:/nowhere/dibs.sock", "http://127.0.0.1:1"].each do |url|
      error = assert_raises(Dibs::Unavailable) { Dibs.connect(url).lock(@key, wait: 0) { flunk } }
      assert_includes error.message, "; is dibs serve running there?"
    end
  end

  def test_a_claim_whose_answer_is_lost_is_asked_again
    @line.cut("claim", 1)
    @over.lock(@key, ttl: 600) { |lease| assert_equal 1, lease.attempt }
    assert_equal "claim", @line.lost
    assert_free
  end

  def test_a_claim_whose_answer_never_came_is_undone
    @line.cut("claim", 1000)
    assert_raises(Dibs::Unavailable) { @over.lock(@key, ttl: 600, wait: 0) { flunk } }
    assert_free
  end

  def test_a_claim_whose_answer_was_lost_and_that_is_refused_then_is_undone
    @line.cut("claim", 1)
    @line.say("claim", Line.problem("401 Unauthorized", "unauthorized"), false)
    assert_raises(Dibs::Unauthorized) { @over.lock(@key, ttl: 600, wait: 0) { flunk } }
    assert_free
  end

  def test_a_release_that_is_interrupted_is_done_in_the_background
    lease = @over.acquire(@key, ttl: 600)
    @line.cut("settle", 1000)
    waiting = Thread.new { lease.release }.tap { |t| t.report_on_exception = false }
    @line.lost
    waiting.raise(Timeout::Error)
    assert_raises(Timeout::Error) { waiting.join }
    refute lease.held?
    assert_free
  end

  # STRIKES leave a call that another thread makes. A kill runs no rescue.
  STRIKES = {
    "an exception" => ->(thread) { thread.raise(Timeout::Error) },
    "a kill" => :kill.to_proc,
    "Timeout" => nil
  }.freeze
  ENDS = { "release" => :release.to_proc, "abandon" => :abandon.to_proc, "undo" => :undo.to_proc,
           "complete" => ->(lease) { lease.complete("record") } }.freeze

  # struck leaves a call of the thread while the server is away.
  def struck(way, lease, call)
    over = -> { call.(lease) }
    over = -> { Timeout.timeout(0.2) { call.(lease) } } if way == "Timeout"
    thread = Thread.new { over.call }
    thread.report_on_exception = false
    @line.lost
    STRIKES[way]&.call(thread)
    thread.join rescue nil
  end

  def test_an_end_that_is_interrupted_is_made_in_the_background
    STRIKES.each_key do |way|
      ENDS.each do |name, call|
        lease = @over.acquire("#{@key} #{way} #{name}", ttl: 600)
        @line.cut("settle", 1000)
        struck(way, lease, call)
        refute lease.held?, "#{way} #{name}"
        refute_includes @over.send(:local).renewer.instance_variable_get(:@leases), lease, "#{way} #{name}"
        @line.forward
        if name == "complete"
          wait("its record is stored") { @server.entry(lease.key)&.fetch("state") == "done" }
          lease.complete("record")
        elsif name == "abandon"
          wait("it is abandoned") { @server.entry(lease.key)&.fetch("state") == "abandoned" }
        else
          assert_free lease.key
        end
      end
    end
  end

  def test_an_end_that_is_left_by_throw_is_made_in_the_background
    ENDS.slice("release", "undo").each do |name, call|
      lease = @over.acquire("#{@key} #{name}", ttl: 600)
      tries = Object.new
      tries.define_singleton_method(:again?) { throw :out }
      @line.cut("settle", 2)
      catch(:out) { Dibs::Tries.stub(:new, tries) { call.(lease) } }
      refute_includes @over.send(:local).renewer.instance_variable_get(:@leases), lease
      assert_free lease.key
    end
  end

  # A busy element is an answer, so a caller that waits without limit continues.
  def test_a_busy_element_is_an_answer
    busy = Line.response("200 OK", "application/json", JSON.generate(answers: [{ error: { type: "busy", detail: "a transaction has the key" } }]))
    moved, asked = 0, 0
    real = Dibs.method(:now).unbind.bind(Dibs)
    @over = Dibs.connect(@line.url, timeout: 6000)
    Dibs.stub(:now, -> { real.call + moved }) do
      @line.before("claim") { asked += 1 }
      @line.say("claim", busy, true)
      { "a lock" => ->(key) { @over.lock(key) { :had } }, "a place" => ->(key) { @over.redeem(@keys.reserve(key)) { :had } } }.each do |name, way|
        waiter = Thread.new { way.("#{@key} #{name}") }
        3.times do
          before = asked
          wait("it asks again") { asked > before + 1 }
          moved += 2 * Dibs.const_get(:POLL)
        end
        before = asked
        wait("it asks again") { asked > before + 1 || !waiter.alive? }
        @line.instance_variable_get(:@says).clear
        assert_equal :had, waiter.value
        @line.say("claim", busy, true)
      end
    end
    @line.forward
  end

  # Its trust counts from when it was sent, because the store may have counted from then.
  def test_a_lease_is_trusted_from_when_its_call_was_sent
    moved = 0
    real = Dibs.method(:now).unbind.bind(Dibs)
    @over = Dibs.connect(@line.url, timeout: 6000, ttl: 600)
    Dibs.stub(:now, -> { real.call + moved }) do
      @line.before("claim") { moved += 100 }
      @line.before("renew") { moved += 100 }
      lease = @over.acquire(@key, wait: 0)
      assert_operator lease.left, :<=, 500
      lease.save("progress")
      assert_operator lease.left, :<=, 500
      @over.send(:local).renewer.send(:renew, [lease], 6000)
      assert_operator lease.left, :<=, 500
      assert_operator lease.left, :>, 400
      assert_operator lease.due, :<=, Dibs.now + 100
      lease.release
    end
  end

  def test_a_claim_that_another_program_answers_is_undone
    @line.say("claim", Line.response("404 Not Found", "text/html", "<p>"), true)
    assert_raises(Dibs::Refused) { @over.lock(@key, ttl: 600, wait: 0) { flunk } }
    assert_free
  end

  def test_a_place_whose_answer_never_came_is_undone
    @line.cut("claim", 1000)
    assert_raises(Dibs::Unavailable) { @over.reserve(@key) }
    assert_free
  end

  def test_a_release_whose_answer_is_lost_is_no_loss
    @line.cut("settle", 1)
    assert_equal :done, @over.lock(@key, ttl: 600) { :done }
    assert_free
  end

  def test_a_result_whose_answer_is_lost_is_stored_once
    runs = 0
    @line.cut("settle", 2)
    assert_equal 1, @over.once(@key) { runs += 1 }
    assert_equal 1, @keys.once(@key) { runs += 1 }
    assert_equal 1, runs
  end

  def test_a_server_is_killed_and_started_again_under_a_lease
    server = Server.new
    keys = server.keys
    keys.lock(@key, ttl: 600) do |lease|
      fence = lease.fence
      server.kill
      assert_raises(Dibs::Unavailable) { keys.lock("#{@key}/2", wait: 0) { flunk } }
      server.start
      lease.save("x")
      assert_equal fence, lease.fence
    end
    refute keys.held?(@key)
  ensure
    keys&.close
    server&.stop
  end

  def test_one_of_two_servers_is_killed
    a = Server.new(listen: "127.0.0.1:0")
    b = Server.new(listen: "127.0.0.1:0", store: a.store)
    keys = Dibs.connect("#{a.url},#{b.url.delete_prefix("http://")}")
    keys.lock(@key, ttl: 600) do |lease|
      waiter = Thread.new { keys.lock(@key, ttl: 600) { :after } }
      wait("it waits") { b.waiters(@key) == 1 }
      a.kill
      lease.check
      @waiter = waiter
    end
    assert_equal :after, @waiter.value
  ensure
    keys&.close
    [a, b].each { |s| s&.stop }
  end

  def test_credentials
    dir = Support.dir
    use, look = SecureRandom.hex(8), "p+a/s%s w"
    File.write("#{dir}/tokens", "app #{Digest::SHA256.hexdigest(use)} shop use\nops #{Digest::SHA256.hexdigest(look)} shop look\n")
    server = Server.new("--tokens", "#{dir}/tokens", listen: "127.0.0.1:0")
    host = server.url.delete_prefix("http://")
    with = ->(secret, **o) { Dibs.connect("http://:#{URI.encode_www_form_component(secret).gsub("+", "%20")}@#{host}", **o) }
    assert_equal 1, with[use].lock(@key) { 1 }
    assert_raises(Dibs::Unauthorized) { Dibs.connect(server.url).lock(@key) { flunk } }
    error = assert_raises(Dibs::Unauthorized) { with["another"].lock(@key) { flunk } }
    refute_includes error.message, "another"
    assert_raises(Dibs::Forbidden) { with[look].lock(@key) { flunk } }
    assert_raises(Dibs::Forbidden) { with[use, namespace: "elsewhere"].lock(@key) { flunk } }
    refute_includes with[use].inspect, use
  ensure
    server&.stop
  end

  def test_tls
    key = OpenSSL::PKey::RSA.new(2048)
    certificate = OpenSSL::X509::Certificate.new
    certificate.version, certificate.serial, certificate.public_key = 2, 1, key.public_key
    certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
    certificate.not_before, certificate.not_after = Time.now - 3600, Time.now + 3600
    extensions = OpenSSL::X509::ExtensionFactory.new(certificate, certificate)
    certificate.add_extension(extensions.create_extension("subjectAltName", "DNS:localhost"))
    certificate.add_extension(extensions.create_extension("basicConstraints", "CA:TRUE", true))
    certificate.sign(key, "SHA256")
    context = OpenSSL::SSL::SSLContext.new
    context.add_certificate(certificate, key)
    tcp = TCPServer.new("localhost", 0)
    listener = OpenSSL::SSL::SSLServer.new(tcp, context)
    thread = Thread.new { serve_tls(listener) }
    url = "https://localhost:#{tcp.addr[1]}"

    error = assert_raises(Dibs::Refused) { Dibs.connect(url).lock(@key) { flunk } }
    assert_match(/certificate/, error.message)
    file = "#{Support.dir}/ca.pem"
    File.write(file, certificate.to_pem)
    { url => "locked", url.sub("localhost", "127.0.0.1") => "refused" }.each do |to, said|
      pid, _, from = script(to, <<~RUBY, { "SSL_CERT_FILE" => file })
        begin
          Dibs.connect.lock(#{@key.inspect}) { puts "locked" }
        rescue Dibs::Refused
          puts "refused"
        end
      RUBY
      assert_equal said, line(from)
      ended(pid)
    end
  ensure
    thread&.kill
    tcp&.close
  end

  # serve_tls forwards connections to the server.
  def serve_tls(listener)
    loop do
      client = listener.accept
      server = UNIXSocket.new(@server.url[/unix:(.*)/, 1])
      Thread.new { IO.copy_stream(client, server) rescue nil }
      Thread.new { IO.copy_stream(server, client) rescue nil }
    rescue OpenSSL::SSL::SSLError
      next # the client does not trust it
    end
  end

  def test_what_is_no_dibs_serve_is_refused
    ["HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"answers\":[]}"].each do |text|
      listener = TCPServer.new("127.0.0.1", 0)
      thread = Thread.new { loop { c = listener.accept; c.readpartial(1 << 16); c.write(text); c.close } }
      keys = Dibs.connect("http://127.0.0.1:#{listener.addr[1]}")
      assert_match(/not a dibs serve/, assert_raises(Dibs::Refused) { keys.lock(@key) { flunk } }.message)
      thread.kill
      listener.close # and not the client, which would wait for the undo
    end
  end

  def test_a_bound_of_the_server_is_overloaded
    server = Server.new("--max-waiters", "1")
    keys = server.keys
    keys.lock(@key) do
      waiter = Thread.new { keys.lock(@key) { :done } }
      other = server.keys
      Thread.new do
        wait("the bound is reached") do
          other.lock(@key, wait: 0.05) { flunk }
        rescue Dibs::Held
          false # the waiter's call has not begun to wait
        rescue Dibs::Overloaded
          true
        end
      end.join
      @waiter = waiter
    end
    assert_equal :done, @waiter.value
  ensure
    keys&.close
    server&.stop
  end

  def test_a_call_that_waits_asks_one_server
    a = Server.new(listen: "127.0.0.1:0")
    b = Server.new(listen: "127.0.0.1:0", store: a.store)
    keys = Dibs.connect("#{a.url},#{b.url.delete_prefix("http://")}")
    local = keys.send(:local)
    a.kill
    call = -> { local.call("claim", [keys.send(:claim, @key).wire("queue")], wait: 20.0) }
    assert_raises(Dibs::Unavailable, &call)
    answers, _, again = call.call # its caller asks the next one, with what is left of the time
    assert_equal ["granted", nil], [answers[0]["state"], again]
  ensure
    keys&.close
    [a, b].each { |s| s&.stop }
  end

  def test_a_long_wait_that_breaks_is_asked_again
    server = Server.new
    keys, other = server.keys, server.keys
    moved = 0
    patience = Dibs.send(:remove_const, :KEEP_PATIENCE)
    Dibs.const_set(:KEEP_PATIENCE, LIMIT)
    Dibs.stub(:now, -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) + moved }) do
      lease = keys.acquire(@key, ttl: 6000)
      waiter = Thread.new { other.acquire(@key) }
      wait("it waits") { other.send(:local).wire.instance_variable_get(:@polls).any? }
      moved = 2 * LIMIT # since it last heard of the server
      server.kill
      server.start
      wait("it waits again") { server.waiters(@key) == 1 }
      lease.release
      waiter.value.release
    end
  ensure
    Dibs.send(:remove_const, :KEEP_PATIENCE)
    Dibs.const_set(:KEEP_PATIENCE, patience)
    [keys, other].each { |k| k&.close }
    server&.stop
  end

  def test_urls
    { "unix:/a b" => "unix:/a b", "http+unix:/a" => "unix:/a", "http+unix:///a" => "unix:/a", "http://h:1" => "http://h:1",
      "https://:t@a,b:8443/" => "https://a:443,https://b:8443", "http://[::1]:7" => "http://::1:7" }.each do |url, text|
      assert_equal "#<Dibs::Client #{text}>", Dibs.connect(url).inspect
    end
    ["", "unix:a", "unix:////a", "redis://h", "h:7331", "https://user:t@h", "https://:@h", "https://:%zz@h", "http://h/path", "http://h?a=1",
     "http://", "http://a,,b", "http://h:99999", "http://:s3cret@h/x"].each do |url|
      error = assert_raises(ArgumentError, url) { Dibs::Client.new(url) }
      refute_includes error.message, "s3cret"
    end
    assert_raises(ArgumentError) { Dibs::Client.new(42) }
    assert_raises(ArgumentError) { Dibs.connect("") }
  end
end
