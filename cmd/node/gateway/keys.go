package gateway

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// KeyPrefix begins each key that the cluster gives out: one that is told apart from an engine's own is never sent to
// an engine, valid or not.
const KeyPrefix = "sk-sparkrun-"

// may tells whether it may ask for a model by this name. Without keys everybody may.
func (k *key) may(name string) bool {
	return k == nil || !k.Metrics && (len(k.Models) == 0 || slices.Contains(k.Models, name))
}

// mayAsk tells whether it may ask for a model by this name, or for the alias that the name fits.
func (x *index) mayAsk(k *key, name string) bool {
	if k.may(name) {
		return true
	}
	alias, _ := x.Gateway.Alias(name)
	return x.models[name] == nil && alias != "" && k.may(alias)
}

// label is a key's name for counters.
func (k *key) label() string {
	if k == nil {
		return ""
	}
	return k.name
}

// admit finds whose request it is, and takes the keys out of its headers. nil without a refusal: none is needed.
func (x *index) admit(h http.Header, now time.Time) (*key, *refusal) {
	var found *key
	given := false
	for _, name := range []string{"Authorization", "X-Api-Key"} {
		values := h[name]
		if len(values) == 0 {
			continue
		}
		keep := values[:0:0]
		for _, v := range values {
			word := bearer(name, v)
			if word != "" && len(x.keys) > 0 {
				given = true
				if k := x.keys[sha256.Sum256([]byte(word))]; k != nil {
					found = k
					continue
				}
			}
			if strings.HasPrefix(word, KeyPrefix) {
				continue
			}
			keep = append(keep, v)
		}
		if len(keep) == 0 {
			h.Del(name)
		} else if len(keep) < len(values) {
			h[name] = keep
		}
	}
	switch {
	case len(x.keys) == 0:
		return nil, nil
	case found != nil && found.Expires != nil && !now.Before(*found.Expires):
		return nil, refuse(401, "invalid_api_key", "key %s expired at %s: have a new one made with "+
			"`sparkrun gateway key create`", found.name, found.Expires.UTC().Format(time.RFC3339))
	case found != nil:
		return found, nil
	case given:
		return nil, refuse(401, "invalid_api_key", "the key is none of this cluster's: it was revoked, or is mistyped")
	}
	return nil, refuse(401, "invalid_api_key",
		"a key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
}

// still refuses a request that has waited and whose key was revoked, or has expired, meanwhile.
func (x *index) still(k *key, now time.Time) *refusal {
	switch {
	case k == nil:
		return nil
	case x.keys[k.Hash] == nil:
		return refuse(401, "invalid_api_key", "key %s was revoked", k.name)
	case k.Expires != nil && !now.Before(*k.Expires):
		return refuse(401, "invalid_api_key", "key %s expired at %s", k.name, k.Expires.UTC().Format(time.RFC3339))
	}
	return nil
}

// mayAny tells whether it may ask for a model by its own name, or by an alias of it.
func (x *index) mayAny(k *key, model string) bool {
	if k.may(model) {
		return true
	}
	for alias, of := range x.Gateway.Aliases {
		if of == model && k.may(alias) {
			return true
		}
	}
	return false
}

// bearer is the key in a header's value.
func bearer(header, value string) string {
	if header != "Authorization" {
		return strings.TrimSpace(value)
	}
	scheme, word, ok := strings.Cut(strings.TrimSpace(value), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(word)
}

// bucket has a token for each request that a key may make now.
type bucket struct {
	mu     sync.Mutex
	tokens float64
	at     time.Time // tokens are as of then
}

// burst is how many requests may come at once: those of a second, and at least one.
func burst(rate float64) float64 { return max(1, rate) }

// spend takes the token of one request, or tells how long it takes until there is one.
func (k *key) spend(now time.Time) *refusal {
	if k == nil || k.Rate <= 0 {
		return nil
	}
	b := k.bucket
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := now.Sub(b.at); d > 0 {
		b.tokens, b.at = min(burst(k.Rate), b.tokens+k.Rate*d.Seconds()), now
	}
	if b.tokens >= 1 {
		b.tokens--
		return nil
	}
	// A wait too long for a Duration is cut to what Retry-After takes before it is one.
	wait := time.Duration(min((1-b.tokens)/k.Rate, maxRetryAfter.Seconds()) * float64(time.Second))
	return refuse(429, "rate_limit_exceeded", "key %s may make %g requests a second at each member: ask again later",
		k.name, k.Rate).after(wait)
}
