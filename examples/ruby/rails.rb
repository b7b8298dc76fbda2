# frozen_string_literal: true

# A Rails application in one file. An order is charged once, however often and wherever its form is
# sent, and a report is made by one request at a time.
#
#   apt-get install ruby-railties ruby-webrick
#   DIBS_SERVER=unix:/tmp/dibs.sock ruby -Iclients/ruby/lib examples/ruby/rails.rb

require "action_controller/railtie"
require "rack/handler/webrick"
require "dibs"

class Shop < Rails::Application
  config.eager_load = true
  config.secret_key_base = SecureRandom.hex(32)
  config.logger = Dibs.logger = Logger.new($stderr)
  routes.append do
    post "/orders/:order/charge", to: "shop#charge"
    post "/reports/:day", to: "shop#report"
  end
end

class ShopController < ActionController::API
  rescue_from(Dibs::Held) { head(:conflict, retry_after: 1) }
  rescue_from(Dibs::Unavailable) { head(:service_unavailable) }

  def charge
    got = Dibs.default.once("charge #{params[:order]}", keep: "24h", wait: 10, with_origin: true) { { charge: rand(1 << 30) } } # or ask the bank
    render json: got.value, status: got.replayed ? :ok : :created
  end

  def report
    fence = Dibs.default.lock("report #{params[:day]}", wait: 0) { |lease| lease.check.fence }
    render json: { fence: fence.to_s }
  end
end

Shop.initialize!
Rack::Handler::WEBrick.run(Shop, Port: ENV.fetch("PORT", 3000), Host: "127.0.0.1", AccessLog: [],
                                 StartCallback: -> { $stdout.puts("ready") || $stdout.flush })
