package frameworks

import (
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/dibs-go/dibs/idempotency"
)

// Echo serves charges by an echo server behind the guard.
func Echo(guard *idempotency.Middleware, charge func(amount string) (string, bool)) http.Handler {
	e := echo.New()
	e.POST("/charges", func(c echo.Context) error {
		amount, err := io.ReadAll(c.Request().Body)
		if err != nil {
			return echo.ErrBadRequest
		}
		if answer, ok := charge(string(amount)); ok {
			return c.String(http.StatusCreated, answer)
		}
		return echo.ErrUnprocessableEntity // echo writes the answer when its middleware has returned
	})
	return guard.Wrap(e)
}
