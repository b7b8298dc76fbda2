package frameworks

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/dibs-go/dibs/idempotency"
)

// Gin serves charges by a gin engine behind the guard.
func Gin(guard *idempotency.Middleware, charge func(amount string) (string, bool)) http.Handler {
	router := gin.New()
	router.POST("/charges", func(c *gin.Context) {
		amount, err := c.GetRawData()
		if err != nil {
			c.AbortWithStatus(http.StatusBadRequest)
			return
		}
		if answer, ok := charge(string(amount)); ok {
			c.String(http.StatusCreated, answer)
		} else {
			c.AbortWithStatus(http.StatusUnprocessableEntity)
		}
	})
	return guard.Wrap(router)
}
