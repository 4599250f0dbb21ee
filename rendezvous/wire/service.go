package wire

import (
	"github.com/sparkrun/sparkrun/launcher"
)

// ServiceRequest says whether a service is to come back after all its machines were off.
type ServiceRequest struct {
	Job       string `json:"job"`
	Autostart bool   `json:"autostart"`
}

// UpdateServiceRequest gives a service another image.
type UpdateServiceRequest struct {
	Job   string `json:"job"`
	Image string `json:"image"`
}

func (r UpdateServiceRequest) about() (string, bool) { return r.Job, true }

// ServiceResponse names the job that it was.
type ServiceResponse struct {
	Job    launcher.JobID `json:"job"`
	OnlyOn string         `json:"recorded_only_on,omitempty"` // see Acknowledged
}
