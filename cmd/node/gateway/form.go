package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/textproto"
)

// readForm finds the model in a form that was read whole.
func (rq *request) readForm(boundary string) *refusal {
	start, end, err := formField(rq.head, boundary, "model")
	switch {
	case err != nil:
		return refuse(400, "", "read form: %s", err)
	case start < 0:
		return refuse(400, "", "the form names no model: give it a field `model`; GET /v1/models lists what there is")
	}
	rq.start, rq.end = start, end
	rq.asked, rq.form = string(rq.head[start:end]), true
	return nil
}

// formField gives where the value of a field stands in a multipart body; -1: nowhere. Two fields of the name are
// refused: of which an engine takes the value is not known here.
func formField(body []byte, boundary, name string) (start, end int, err error) {
	start, end = -1, -1
	delimiter := []byte("\r\n--" + boundary)
	at := 0
	if !bytes.HasPrefix(body, delimiter[2:]) {
		i := bytes.Index(body, delimiter)
		if i < 0 {
			return -1, -1, errors.New("its boundary does not come in it")
		}
		at = i + 2
	}
	at += len(delimiter) - 2
	for {
		rest := body[at:]
		if bytes.HasPrefix(rest, []byte("--")) {
			return start, end, nil
		}
		line := bytes.TrimLeft(rest, " \t")
		if !bytes.HasPrefix(line, []byte("\r\n")) {
			return -1, -1, errors.New("a boundary is not followed by a line's end")
		}
		from := at + len(rest) - len(line) + 2
		headers := bytes.Index(body[from-2:], []byte("\r\n\r\n"))
		if headers < 0 {
			return -1, -1, errors.New("a part's headers do not end")
		}
		value := from - 2 + headers + 4
		length := bytes.Index(body[value-2:], delimiter) // an empty value's line end is that of the headers
		if length < 0 {
			return -1, -1, errors.New("the last part does not end")
		}
		stop := max(value, value-2+length)
		is, err := isField(body[from:value], name)
		if err != nil {
			return -1, -1, err
		}
		if is {
			if start >= 0 {
				return -1, -1, fmt.Errorf("the field %s is given twice", name)
			}
			start, end = value, stop
		}
		at = value - 2 + length + len(delimiter)
	}
}

func isField(headers []byte, name string) (bool, error) {
	if !bytes.Contains(headers, []byte(name)) && !bytes.ContainsAny(headers, "%\\*") { // it cannot be
		return false, nil
	}
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(headers))).ReadMIMEHeader()
	if err != nil {
		return false, fmt.Errorf("a part's headers: %w", err)
	}
	if len(h["Content-Disposition"]) != 1 {
		return false, errors.New("a part has not one Content-Disposition")
	}
	_, params, err := mime.ParseMediaType(h.Get("Content-Disposition"))
	if err != nil {
		return false, fmt.Errorf("a part's Content-Disposition: %w", err)
	}
	return params["name"] == name, nil
}
