# frozen_string_literal: true

module Dibs
  # Claim is what a caller asks for, and what its token may have at the store.
  class Claim # :nodoc:
    attr_reader :key, :namespace, :token, :ttl, :place_ttl, :stop_timeout, :max_lifetime, :permits, :weight, :wait, :from
    attr_accessor :open # the token may have a lease or a place

    # id is the public name of a token.
    def self.id(token)
      sum = Digest::SHA256.digest("dibs claim id\0".b + [token].pack("H*"))[0, 10]
      sum.unpack1("B*").scan(/.{5}/).map { |b| "abcdefghijklmnopqrstuvwxyz234567"[b.to_i(2)] }.join
    end

    def initialize(key, options)
      @key, @options = key, options
      @namespace = options[:namespace]
      @token = options[:token] || SecureRandom.hex(16)
      @from, @ttl, @wait, @place_ttl = options[:from], options[:ttl], options[:wait], options[:place_ttl] || PLACE_TTL
      @permits, @weight = options[:permits] || 1, options[:weight] || 1
      @stop_timeout = [options[:stop_timeout] || 0.0, @ttl / 50 + 0.001].max
      @max_lifetime = options[:max_lifetime]
    end

    def digest
      Digest::SHA256.hexdigest("#{@namespace}\0".b + @key.b)[0, 12]
    end

    # shown is the key in messages: its digest if keys may be secrets.
    def shown
      @options[:secret_keys] ? digest : @key.inspect
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

  # Tries paces the tries of one call: pauses double from 20 ms to 1 s, half of each is random.
  class Tries # :nodoc:
    def initialize(patience, local)
      @local = local
      @ends = local.now + patience
      @pause = 0.01
    end

    # again? waits for the next try, or returns false if that would be too late.
    def again?
      @pause = [@pause * 2, 1.0].min
      pause = @pause * rand(0.5..1.0)
      return false if @local.now + pause > @ends

      @local.sleep(pause)
      true
    end
  end
end
