package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Most of what is read of an answer, and of a listing: a dataset may have 100,000 files.
const (
	maxAnswer = 64 << 20
	maxFiles  = 500_000 // and folders
	maxPages  = 5_000   // the Hub's have 1,000 files
)

// Resolve finds the commit of a revision (empty: main), and lists its files. If the repository is
// restricted it also has the Hub say that this token may have them.
//
//	GET /api/{models|datasets}/REPO/revision/REV             hf_api.py, model_info: sha, gated, private
//	GET /api/{models|datasets}/REPO/tree/COMMIT?recursive=…  hf_api.py, list_repo_tree: pages by Link
//	GET /api/{models|datasets}/REPO/auth-check               hf_api.py, auth_check
func (c *Client) Resolve(ctx context.Context, repo string, t Type, revision string) (*Revision, error) {
	if err := CheckRepo(repo, t); err != nil {
		return nil, err
	}
	if revision == "" {
		revision = "main"
	}
	what := fmt.Sprintf("resolve %s %s@%s", t, repo, revision)
	api := c.cfg.Endpoint + "/api/" + string(t) + "s/" + repo
	var info struct {
		SHA     string          `json:"sha"`
		Private bool            `json:"private"`
		Gated   json.RawMessage `json:"gated"` // false, "auto" or "manual"
	}
	if _, err := c.ask(ctx, api+"/revision/"+quote(revision), &info); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if !commitForm().MatchString(info.SHA) {
		return nil, fmt.Errorf("%s: %w: commit %q", what, ErrAnswer, info.SHA)
	}
	gated := strings.TrimSpace(string(info.Gated))
	r := &Revision{Repo: repo, Type: t, Asked: revision, Commit: info.SHA,
		Restricted: info.Private || gated != "" && gated != "false" && gated != "null"}
	if r.Restricted {
		// A mirror may not know this call; then the files' own answers decide.
		_, err := c.ask(ctx, api+"/auth-check", nil)
		r.Accepted = err == nil && c.cfg.Token != ""
		if errors.Is(err, ErrGated) || errors.Is(err, ErrToken) || ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	listed, pages := 0, 0
	for next := api + "/tree/" + info.SHA + "?recursive=true&expand=false"; next != ""; pages++ {
		var page []struct {
			Type string `json:"type"`
			Path string `json:"path"`
			Size int64  `json:"size"`
			OID  string `json:"oid"`
			LFS  *struct {
				OID  string `json:"oid"`
				Size int64  `json:"size"`
			} `json:"lfs"`
		}
		more, err := c.ask(ctx, next, &page)
		if err != nil {
			return nil, fmt.Errorf("%s: list files: %w", what, err)
		}
		for _, e := range page {
			switch {
			case e.Type != "file":
			case e.LFS != nil:
				r.Files = append(r.Files, File{Path: e.Path, Size: e.LFS.Size, SHA256: strings.TrimPrefix(e.LFS.OID, "sha256:")})
			default:
				r.Files = append(r.Files, File{Path: e.Path, Size: e.Size, GitOID: e.OID})
			}
		}
		listed += len(page)
		if next = more; listed > maxFiles || pages == maxPages || next != "" && len(page) == 0 {
			return nil, fmt.Errorf("%s: list files: %w: the listing has no end", what, ErrAnswer)
		}
	}
	if err := CheckFiles(r.Files); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	slices.SortFunc(r.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return r, nil
}

// ask GETs one answer of the API, with the token where it may go, and says where the next page is.
func (c *Client) ask(ctx context.Context, at string, into any) (next string, err error) {
	err = c.patiently(ctx, func(ctx context.Context) error {
		resp, err := c.follow(ctx, http.MethodGet, at, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		next = nextPage(resp)
		if err := status(resp); err != nil {
			return err
		}
		if into == nil {
			return nil
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", errBroken, err)
		case len(text) > maxAnswer:
			return fmt.Errorf("%w: over %d bytes", ErrAnswer, maxAnswer)
		}
		if err := json.Unmarshal(text, into); err != nil {
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		return nil
	})
	return next, err
}

var nextLink = plain.Pattern(`<([^>]*)>\s*;[^,]*rel="?next"?`)

// nextPage reads GitHub's form of Link (huggingface_hub/utils/_pagination.py).
func nextPage(resp *http.Response) string {
	m := nextLink().FindStringSubmatch(strings.Join(resp.Header.Values("Link"), ", "))
	if m == nil {
		return ""
	}
	next, err := resp.Request.URL.Parse(m[1])
	if err != nil {
		return ""
	}
	return next.String()
}

// quote is Python's quote(s, safe=""): revisions like refs/pr/1 are one part of the path.
func quote(s string) string { return strings.ReplaceAll(url.PathEscape(s), "+", "%2B") }

func quotePath(p string) string {
	parts := strings.Split(p, "/")
	for i := range parts {
		parts[i] = quote(parts[i])
	}
	return strings.Join(parts, "/")
}
