# frozen_string_literal: true

module Dibs
  # Wire makes calls of one process to the servers. It keeps its connections.
  class Wire # :nodoc:
    def initialize(address, timeout)
      @address, @timeout, @clock = address, timeout, address.clock
      @lock = Mutex.new
      @idle = []
      @all = {}
      @polls = {} # the connections of calls that wait
      @current = 0
    end

    # call makes one call, of elements as JSON, and returns the answers, when it was sent, and when it
    # was sent before and not answered, so that it may have been done then, or nil. If a server is away
    # it asks the next one, each once, and shares the time among them. timeout bounds all of it. wait
    # is how long the server may take longer on purpose. Such a call asks one server only, because its
    # caller asks again with less time to wait.
    def call(verb, elements, wait: 0.0, timeout: @timeout)
      ends = @clock.now + timeout
      away = silent = nil
      count = wait.positive? ? 1 : @address.servers.size
      count.times do |i|
        first = @current
        server = @address.servers[first % @address.servers.size]
        left = ends - @clock.now
        break if left <= 0
        begin
          answers, sent, again = ask(server, verb, elements, wait, left / (count - i))
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

    # get returns what the JSON lines at a path say.
    def get(path)
      server = @address.servers[@current % @address.servers.size]
      answer, = exchange(server, "GET", path, "", 0.0, @timeout)
      raise Refused, "dibs: #{server} answers with #{answer.status}" unless answer.status == "200"

      answer.body.lines.map { |line| parse(line) || {} }
    end

    # end_waits ends the calls that wait.
    def end_waits
      @lock.synchronize do
        @closing = true
        @polls.each_key(&:cut)
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

    # LISTS are the names of the elements of a call.
    LISTS = { "claim" => "claims", "renew" => "renewals", "settle" => "settlements" }.freeze
    private_constant :LISTS

    def ask(server, verb, elements, wait, timeout)
      body = "{\"#{LISTS[verb]}\":[#{elements.join(",")}]"
      body << ",\"wait_ms\":#{(wait * 1000).ceil}" if wait.positive?
      body << ",\"timeout_ms\":#{[((wait + timeout) * 1000).ceil, 1].max}" if verb == "claim"
      answer, sent, again = exchange(server, "POST", "/v1/#{verb}", body << "}", wait, timeout)
      [read(server, verb, answer, elements.size, sent), sent, again]
    rescue Error => e
      e.unanswered ||= again
      raise
    end

    # exchange sends a request. A kept connection may have been closed by the server meanwhile, so
    # then a new one is used; every call may be repeated. Whatever else ends the call closes its
    # connection, from which the server sees that nobody listens any more.
    def exchange(server, method, path, body, wait, timeout)
      ends = @clock.now + timeout
      connection = checkout(server)
      again = sent = nil
      begin
        kept = connection.used
        @lock.synchronize { @polls[connection] = true } if wait.positive?
        connection.open(ends) unless connection.open?
        raise Unavailable, "dibs: the client is closed" if wait.positive? && @closing

        sent = @clock.now
        answer = connection.exchange(method, path, body, ends + wait)
        whole = true
        [answer, sent, again]
      rescue EOFError, Errno::ECONNRESET, Errno::EPIPE, Errno::ECONNABORTED => e
        drop(connection)
        raise silent(Unavailable.new("dibs: #{server}: #{e.message}"), sent) unless kept

        connection = create(server)
        again = sent
        retry
      rescue OpenSSL::SSL::SSLError => e
        kind = e.message.match?(/certificate|hostname/) ? Refused : Unavailable
        raise silent(kind.new("dibs: #{server}: #{e.message}"), sent)
      rescue SystemCallError, SocketError, IOError, Connection::Late, Connection::Strange => e
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
          at = @idle.rindex { |c| c.server.equal?(server) }
          at && @idle.delete_at(at)
        end
        return kept || create(server) unless kept&.stale?

        drop(kept)
      end
    end

    def create(server)
      connection = server.connection
      @lock.synchronize { @all[connection] = true }
      connection
    end

    def checkin(connection)
      @lock.synchronize do
        @polls.delete(connection)
        @idle << connection
      end
    end

    def drop(connection)
      @lock.synchronize { [@polls, @all].each { |set| set.delete(connection) } }
      connection.close
    end

    # read reads an answer. Only dibs serve itself knows that nothing was done: what another program
    # answers says nothing of a server behind it.
    def read(server, verb, answer, size, sent)
      return answers(server, answer, size, sent) if answer.status == "200"

      problem = answer.type == "application/problem+json" ? parse(answer.body) : nil
      problem = nil unless problem.is_a?(Hash)
      text = problem && "#{problem["title"]} (#{answer.status}): #{problem["detail"]}"
      if answer.status.to_i >= 500
        stopping = problem && problem["type"].to_s.end_with?("#stopping")
        raise silent(Unavailable.new("dibs: #{verb}: #{text || "#{server} answers with #{answer.status}"}"), stopping ? nil : sent)
      end
      raise stranger(server, "with #{answer.status}", sent) unless text

      kind = { "401" => Unauthorized, "403" => Forbidden, "429" => Overloaded }.fetch(answer.status, Refused)
      raise kind, "dibs: #{verb}: #{text}"
    end

    def answers(server, answer, size, sent)
      body = answer.type == "application/json" ? parse(answer.body) : nil
      list = body.is_a?(Hash) ? body["answers"] : nil
      return list if list.is_a?(Array) && list.size == size && list.all?(Hash)

      raise stranger(server, "with something else", sent)
    end

    def stranger(server, how, sent)
      silent(Refused.new("dibs: what answers at #{server} #{how} is not a dibs serve"), sent)
    end

    def parse(text)
      JSON.parse(text)
    rescue JSON::ParserError
      nil
    end
  end
end
