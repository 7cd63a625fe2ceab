"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.core.model import ComposerModel
from composer.models.bert import create_bert_classification, create_bert_mlm
from composer.models.classifier import ComposerClassifier
from composer.models.classify_mnist import MNIST_Classifier, mnist_model
from composer.models.deeplabv3 import ComposerDeepLabV3, composer_deeplabv3
from composer.models.efficientnet import EfficientNetB0, composer_efficientnetb, composer_efficientnetb0
from composer.models.gpt2 import create_gpt2
from composer.models.huggingface import HuggingFaceModel, write_huggingface_pretrained_from_composer_checkpoint
from composer.models.initializers import Initializer
from composer.models.resnet import ComposerResNet, composer_resnet
from composer.models.resnet_cifar import ComposerResNetCIFAR, composer_resnet_cifar
from composer.models.timm import Timm, composer_timm
from composer.models.unet import UNet, composer_unet
from composer.models.vit import ViTSmallPatch16, composer_vit, vit_small_patch16

__all__ = [
    "ComposerClassifier",
    "ComposerDeepLabV3",
    "ComposerModel",
    "ComposerResNet",
    "ComposerResNetCIFAR",
    "EfficientNetB0",
    "HuggingFaceModel",
    "Initializer",
    "MNIST_Classifier",
    "Timm",
    "UNet",
    "ViTSmallPatch16",
    "composer_deeplabv3",
    "composer_efficientnetb",
    "composer_efficientnetb0",
    "composer_resnet",
    "composer_resnet_cifar",
    "composer_timm",
    "composer_unet",
    "composer_vit",
    "create_bert_classification",
    "create_bert_mlm",
    "create_gpt2",
    "mnist_model",
    "vit_small_patch16",
    "write_huggingface_pretrained_from_composer_checkpoint",
]
