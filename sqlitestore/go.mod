module github.com/dibs-go/dibs/sqlitestore

go 1.26

require github.com/dibs-go/dibs v0.0.0

replace github.com/dibs-go/dibs => ../
