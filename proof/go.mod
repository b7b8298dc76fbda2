module github.com/dibs-go/dibs/proof

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/chromedp/cdproto v0.0.0-20260321001828-e3e3800016bc
	github.com/chromedp/chromedp v0.15.1
	github.com/dibs-go/dibs v0.0.0
	github.com/dibs-go/dibs/mysqlstore v0.0.0
	github.com/dibs-go/dibs/pgstore v0.0.0
	github.com/dibs-go/dibs/stores v0.0.0
	github.com/go-sql-driver/mysql v1.10.1
	github.com/jackc/pgx/v5 v5.12.0
	github.com/redis/rueidis v1.0.79
	golang.org/x/sys v0.49.0
	modernc.org/sqlite v1.61.1
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/chromedp/sysutil v1.1.0 // indirect
	github.com/dibs-go/dibs/redisstore v0.0.0 // indirect
	github.com/dibs-go/dibs/sqlitestore v0.0.0 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260214004413-d219187c3433 // indirect
	github.com/gobwas/httphead v0.1.0 // indirect
	github.com/gobwas/pool v0.2.1 // indirect
	github.com/gobwas/ws v1.4.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

replace github.com/dibs-go/dibs => ../

replace github.com/dibs-go/dibs/mysqlstore => ../mysqlstore

replace github.com/dibs-go/dibs/pgstore => ../pgstore

replace github.com/dibs-go/dibs/redisstore => ../redisstore

replace github.com/dibs-go/dibs/sqlitestore => ../sqlitestore

replace github.com/dibs-go/dibs/stores => ../stores
