package readiness

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// 200 is documented for --health: a login page behind a redirect is no sign of health, at the start or later.
func TestARedirectIsNoHealth(t *testing.T) {
	for code, well := range map[int]bool{200: true, 204: true, 302: false, 307: false, 404: false, 503: false} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/login")
			w.WriteHeader(code)
		}))
		if err := get(t.Context(), s.URL+"/health"); (err == nil) != well {
			t.Errorf("%d: %v", code, err)
		}
		s.Close()
	}
}
