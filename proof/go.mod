module github.com/dibs-go/dibs/proof

go 1.26

require (
	github.com/dibs-go/dibs v0.0.0
	github.com/dibs-go/dibs/sqlitestore v0.0.0
)

replace github.com/dibs-go/dibs => ../

replace github.com/dibs-go/dibs/sqlitestore => ../sqlitestore
