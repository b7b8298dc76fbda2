# frozen_string_literal: true

module Dibs
  module Testing
    # Key is the state of a key, by the same rules as in a store. Times are seconds. A claim, a renewal
    # and a settlement are elements of calls, and so are their answers.
    class Key # :nodoc:
      Lease = Struct.new(:token, :fence, :attempt, :since, :ends, :once, :number, :inherited, :saved, :permits, :weight, :fingerprint,
                         :owner, keyword_init: true)
      Place = Struct.new(:token, :number, :reserved, :ends, :grace, :asked, keyword_init: true)
      Record = Struct.new(:token, :data, :written, :ends, :fingerprint)

      LOST = { "error" => { "type" => "lost", "detail" => "dibs: lease lost" } }.freeze
      REMEMBERED = 86_400 # how long an abandoned lease is remembered
      private_constant :LOST, :REMEMBERED

      def initialize(clock)
        @clock = clock
        @leases, @places = [], []
        @number = @fence = 0
      end

      def claim(asked)
        advance
        mode, held = asked["mode"] || "try", lease(asked["token"])
        return again(held, asked, mode) if held

        own = place(asked["token"])
        at = own || reserved(asked["from"])
        refusal = refused(asked)
        if refusal
          @places.delete(own) unless mode == "look" || refusal["state"] == "unknown"
          return refusal
        end
        first = front.nil? || (at && at.number <= front.number)
        turn = first && room?(asked) && !(at && @leases.any? { |l| l.number == at.number })
        case mode
        when "look" then return turn ? { "state" => "free", "queued" => (true if at) }.compact : held(at)
        when "reserve" then return held(join(asked, own, own, true))
        else return take(asked, own, at) if turn
        end
        @idle_since ||= now if room?(asked) && !first && front.reserved
        held(mode == "queue" ? join(asked, own, at, false) : at)
      end

      def renew(renewal)
        held = lease(renewal["token"])
        return LOST unless held && held.ends > now

        held.ends = now + ms(renewal["ttl_ms"], 30_000)
        held.saved = renewal["progress"] if renewal["progress"]
        {}
      end

      def settle(settlement)
        advance
        outcome, held, own = settlement["outcome"] || "release", lease(settlement["token"]), place(settlement["token"])
        if held
          finish(held, outcome, settlement)
        elsif outcome == "keep"
          return @record && @record.token == settlement["token"] && @record.ends > now ? {} : LOST
        elsif own
          @places.delete(own)
        else
          return LOST
        end
        {}
      end

      # take_away ends the leases of the key, as an operator does.
      def take_away
        advance
        @leases.dup.each { |l| finish(l, "release", {}) }
        @abandoned = nil
      end

      # before are the tokens of the leases, and of the waiters that come before a token.
      def before(token)
        @leases.map(&:token) + @places.take_while { |p| p.token != token }.reject(&:reserved).map(&:token)
      end

      # due is when the next lease, place or grace ends, or nil.
      def due
        [*@leases.map(&:ends), *@places.map { |p| grace_end(p) }].select(&:finite?).min
      end

      # runs are the leases as operators see them.
      def runs
        advance
        @leases.map do |l|
          { "id" => Claim.id(l.token), "owner" => l.owner, "since_ms" => ((now - l.since) * 1000).floor }
        end
      end

      private

      def now
        @clock.now
      end

      def ms(value, default)
        (value || default) / 1000.0
      end

      # to_ms is what is left of a time. A lease without an end is renewed.
      def to_ms(seconds)
        seconds.finite? ? ([seconds, 0.001].max * 1000).ceil : 30_000
      end

      # advance ends what has expired.
      def advance
        @places.reject! { |p| p.ends <= now }
        @idle_since = nil if @places.empty?
        @leases.select { |l| l.ends <= now }.sort_by { |l| [l.ends, l.fence] }.each { |l| abandon(l, l.ends) }
        @abandoned = nil if @abandoned && !@abandoned.once && @abandoned.ends + REMEMBERED <= now
        front
      end

      def lease(token)
        @leases.find { |l| l.token == token }
      end

      def place(token)
        @places.find { |p| p.token == token }
      end

      def reserved(token)
        token && @places.find { |p| p.token == token && p.reserved }
      end

      # front is the first place that blocks. Reserved places whose grace is over end.
      def front
        loop do
          found = @places.find { |p| @leases.none? { |l| l.number == p.number } }
          return found if found.nil? || grace_end(found) > now

          @places.delete(found)
          @idle_since = nil if @places.empty?
        end
      end

      def grace_end(place)
        return place.ends unless place.reserved && place.grace.positive? && @idle_since

        [place.ends, [@idle_since, place.asked].max + place.grace].min
      end

      def room?(asked)
        permits = asked["permits"] || 1
        (@leases.empty? || @leases[0].permits == permits) && @leases.sum(&:weight) + (asked["weight"] || 1) <= permits
      end

      # again answers a token that has a lease.
      def again(held, asked, mode)
        return { "state" => "free" } if mode == "look"

        held.ends = now + ms(asked["ttl_ms"], 30_000) unless mode == "reserve"
        granted(held)
      end

      def granted(held)
        { "state" => "granted", "fence" => held.fence.to_s, "attempt" => held.attempt, "progress" => held.inherited }.compact
      end

      # refused answers a claim that gets neither the key nor a place.
      def refused(asked)
        max_age = ms(asked["max_age_ms"], 0)
        accepts = @record && max_age.positive? && @record.ends > now && @record.written >= now - max_age
        if [*@leases, @abandoned, (@record if accepts)].compact.any? { |l| differs?(l.fingerprint, asked["fingerprint"]) }
          { "state" => "mismatch" }
        elsif accepts
          age = ((now - @record.written) * 1000).floor
          { "state" => "done", "record" => { "data" => @record.data, "age_ms" => age, "left_ms" => to_ms(@record.ends - now) } }
        elsif @abandoned&.once
          { "state" => "unknown", "id" => Claim.id(@abandoned.token) }
        end
      end

      # differs? reports whether both are fingerprints, which zeros are not, and not the same.
      def differs?(one, other)
        [one, other].all? { |f| f&.match?(/[^0]/) } && !one.casecmp?(other)
      end

      def take(asked, own, at)
        @places.delete(own) unless own&.reserved
        there = at ? @places.select { |p| p.number == at.number } : []
        grace = ms(asked["grace_ms"], 0)
        there.each { |p| p.grace = grace if p.reserved && grace.positive? }
        @idle_since = nil
        @leases << Lease.new(
          token: asked["token"], fence: @fence += 1, attempt: (@abandoned&.attempt || 0) + 1, since: now,
          ends: now + ms(asked["ttl_ms"], 30_000), once: asked["at_most_once"], number: there.first&.number,
          inherited: @abandoned&.inherited, permits: asked["permits"] || 1, weight: asked["weight"] || 1,
          fingerprint: asked["fingerprint"], owner: asked["owner"] || {}
        )
        granted(@leases.last)
      end

      # join returns the token's own place, or a new one at the number of at, or at the end.
      def join(asked, own, at, reserved)
        unless own && own.reserved == reserved
          @places.delete(own)
          @number = [@number, *@places.map(&:number)].max + 1 unless at
          own = Place.new(token: asked["token"], number: at ? at.number : @number, reserved: reserved)
          @places << own
          @places = @places.each_with_index.sort_by { |p, i| [p.number, p.reserved ? 1 : 0, i] }.map(&:first)
        end
        own.ends = now + ms(asked["place_ttl_ms"], 10_000)
        own.grace, own.asked = ms(asked["grace_ms"], 0), now
        own
      end

      def held(place)
        before = @places.take_while { |p| place.nil? || p.number < place.number }
        ahead = (before.map(&:number) - @leases.map(&:number)).uniq.size
        answer = { "state" => "held" }
        answer["queued"] = true if place
        answer["ahead"] = ahead if ahead.positive?
        answer["left_ms"] = to_ms(@leases.map(&:ends).min - now) if @leases.any?
        answer
      end

      def finish(held, outcome, settlement)
        return abandon(held, now) if outcome == "abandon"

        @leases.delete(held)
        return if outcome == "undo"

        if outcome == "keep"
          @record = Record.new(held.token, settlement["data"] || "", now, now + ms(settlement["retention_ms"], 86_400_000), held.fingerprint)
        end
        @places.reject! { |p| p.number == held.number } if held.number
        @abandoned = nil
      end

      def abandon(held, moment)
        @leases.delete(held)
        was = held.dup
        was.attempt = (@abandoned&.attempt || 0) + 1
        was.inherited = held.saved || @abandoned&.inherited
        was.ends, was.number = moment, nil
        @abandoned = was
      end
    end
  end
end
